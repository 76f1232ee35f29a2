// The server's endpoints: which request goes where, who may ask, what is answered.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "admission.h"
#include "answer_streams.h"
#include "backend.h"
#include "batches.h"
#include "embedding.h"
#include "errors.h"
#include "fair_pool.h"
#include "frontend/rollout_formats.h"
#include "frontend/vllm_generate.h"
#include "lab.h"
#include "relay.h"
#include "server_options.h"
#include "stop_signals.h"
#include "transfers.h"
#include "translated.h"
#include "weight_spool.h"
#include "worker.h"

namespace invar::server {

struct Door;
struct DoorRow;

class Server {
 public:
  // All but the options outlive it. Without a journal nothing is remembered.
  Server(const ServerOptions& options, const ServedModel& model, Backend& backend,
         Journal* journal);

  int port() const { return http_.port(); }
  // All doors and their routes, as docs/limits.md has them (routes.h).
  static std::vector<DoorRow> doors();
  // The door that a request stands at and may take, of a server with these options; or null, and
  // the reply to one that has none. Throws ApiError.
  static const Door* find_door(const ServerOptions& options, const HttpRequest& request,
                               HttpReply& otherwise);
  // The reply to GET /, /docs, /openapi.json and /page/NAME. Throws ApiError.
  static HttpReply page_at(const std::string& path);
  // Serves until SIGTERM or SIGINT, then until every answer is sent. Throws EngineFailed when the
  // engine fails, after every answer has ended with an error.
  void run();

 private:
  using Endpoint = void (Server::*)(std::shared_ptr<Exchange>);
  struct Route;
  static const std::vector<Route>& routes();
  static const std::vector<Route>& trainer_routes();
  static const std::vector<Route>& tool_routes();  // of Ollama's clients and llama.cpp's

  void stop();
  // The refusal of a request whose body is not worth reading, or how large that may be.
  Passage gate(const HttpRequest& request);
  void handle(const std::shared_ptr<Exchange>& exchange);
  void route(const std::shared_ptr<Exchange>& exchange);
  // The route that the request asks for and may take, or the reply to one that has none. Throws
  // ApiError.
  static const Route* find_route(const ServerOptions& options, const HttpRequest& request,
                                 HttpReply& otherwise);
  static std::string nothing_at(const std::string& path);
  // Bytes of the largest body that a route takes.
  size_t most_body(const Route& route) const;
  void check_body(const Route& route, const HttpRequest& request) const;
  void set_deadline(const std::shared_ptr<Exchange>& exchange);
  // Gives the request's slots back; the other leaves them to what still reads it or waits for it.
  void refuse(Exchange& exchange, const ApiError& error);
  void refuse_late(Exchange& exchange);
  // The task in which a request's body is read; one that may take long for other reasons.
  FairPool::Task reading(const HttpRequest& request) const;
  FairPool::Task slow(const HttpRequest& request) const;
  // Gives free memory back to the system, when others have nothing to do.
  void trim_memory();
  bool ends_forms(const AnswerStream& stream);
  // Runs a task on the pool; what it makes is the reply. Throws ApiError where too many of its
  // owner wait.
  void offer(FairPool::Task task, std::function<void()> run);
  void reply_later(FairPool::Task task, std::shared_ptr<Exchange> exchange,
                   std::function<json::Value()> make);
  // The same of what asks for tokens or texts of tokens, whose memory is held until it is answered.
  void reply_with_tokens(std::shared_ptr<Exchange> exchange, std::function<json::Value()> make);
  // One at least; how many an answer needs is known when the body is understood. Throws ApiError
  // where there is none.
  std::shared_ptr<HeldSlots> take_slot(Exchange& exchange);

  void health(std::shared_ptr<Exchange> exchange);
  void version(std::shared_ptr<Exchange> exchange);
  void models(std::shared_ptr<Exchange> exchange);
  void model(std::shared_ptr<Exchange> exchange);
  void load(std::shared_ptr<Exchange> exchange);
  void metrics(std::shared_ptr<Exchange> exchange);
  void answer(std::shared_ptr<Exchange> exchange);
  void tokenize(std::shared_ptr<Exchange> exchange);
  void render(std::shared_ptr<Exchange> exchange);
  void detokenize(std::shared_ptr<Exchange> exchange);
  void count_tokens(std::shared_ptr<Exchange> exchange);
  void ask(std::shared_ptr<Exchange> exchange);
  void retrieve(std::shared_ptr<Exchange> exchange);
  void input_items(std::shared_ptr<Exchange> exchange);
  void cancel_response(std::shared_ptr<Exchange> exchange);
  void count_input(std::shared_ptr<Exchange> exchange);
  void forget_response(std::shared_ptr<Exchange> exchange);
  // The line of a response that is the request's owner's. Throws ApiError.
  JournalLine response_line(const HttpRequest& request, const std::string& id) const;
  void take_weights(std::shared_ptr<Exchange> exchange);
  void load_adapter(std::shared_ptr<Exchange> exchange);
  void unload_adapter(std::shared_ptr<Exchange> exchange);
  // Routes of RL stacks (trainer_routes).
  void generate_sglang(std::shared_ptr<Exchange> exchange);
  void generate_trl(std::shared_ptr<Exchange> exchange);
  void generate_vllm(std::shared_ptr<Exchange> exchange);
  void generate_skyrl(std::shared_ptr<Exchange> exchange);
  void derender(std::shared_ptr<Exchange> exchange);
  void weight_info(std::shared_ptr<Exchange> exchange);
  void loads(std::shared_ptr<Exchange> exchange);
  void refuse_profile(std::shared_ptr<Exchange> exchange);
  void server_info(std::shared_ptr<Exchange> exchange);
  void world_size(std::shared_ptr<Exchange> exchange);
  void get_weight_version(std::shared_ptr<Exchange> exchange);
  void reset_prefix_cache(std::shared_ptr<Exchange> exchange);
  void pause(std::shared_ptr<Exchange> exchange);
  void is_paused(std::shared_ptr<Exchange> exchange);
  void go_on_generating(std::shared_ptr<Exchange> exchange);
  void abort_requests(std::shared_ptr<Exchange> exchange);
  void sleep(std::shared_ptr<Exchange> exchange);
  void wake_up(std::shared_ptr<Exchange> exchange);
  void release_memory(std::shared_ptr<Exchange> exchange);
  void resume_memory(std::shared_ptr<Exchange> exchange);
  void check_weights(std::shared_ptr<Exchange> exchange);
  void update_from_disk(std::shared_ptr<Exchange> exchange);
  void begin_session(std::shared_ptr<Exchange> exchange);
  void end_session(std::shared_ptr<Exchange> exchange);
  void init_transfer(std::shared_ptr<Exchange> exchange);
  void end_transfer(std::shared_ptr<Exchange> exchange);
  void start_update(std::shared_ptr<Exchange> exchange);
  void start_draft_update(std::shared_ptr<Exchange> exchange);
  void update_weights(std::shared_ptr<Exchange> exchange);
  void finish_update(std::shared_ptr<Exchange> exchange);
  void name_weights(std::shared_ptr<Exchange> exchange);
  void call_workers(std::shared_ptr<Exchange> exchange);
  void refuse_transport(std::shared_ptr<Exchange> exchange);
  // Routes of Ollama's clients.
  void ollama_answer(std::shared_ptr<Exchange> exchange);
  void ollama_tags(std::shared_ptr<Exchange> exchange);
  void ollama_ps(std::shared_ptr<Exchange> exchange);
  void ollama_show(std::shared_ptr<Exchange> exchange);
  void ollama_version(std::shared_ptr<Exchange> exchange);
  void ollama_embed(std::shared_ptr<Exchange> exchange);
  void refuse_library(std::shared_ptr<Exchange> exchange);
  json::Value ollama_model(const std::string& name) const;
  // OpenAI's files and batches.
  void add_file(std::shared_ptr<Exchange> exchange);
  void list_files(std::shared_ptr<Exchange> exchange);
  void show_file(std::shared_ptr<Exchange> exchange);
  void file_content(std::shared_ptr<Exchange> exchange);
  void remove_file(std::shared_ptr<Exchange> exchange);
  void add_batch(std::shared_ptr<Exchange> exchange);
  void list_batches(std::shared_ptr<Exchange> exchange);
  void show_batch(std::shared_ptr<Exchange> exchange);
  void cancel_batch(std::shared_ptr<Exchange> exchange);
  void open_batches();
  // A line of a batch, on its way to the endpoint's function.
  void ask_line(const std::shared_ptr<Exchange>& exchange);
  // The store, where there is a journal beside it; what is in it and the request's owner's. Throw
  // ApiError.
  BatchStore& store() const;
  StoredFile own_file(const HttpRequest& request, const std::string& id) const;
  Batch own_batch(const HttpRequest& request, const std::string& id) const;
  Batch new_batch(const HttpRequest& request) const;
  // Routes of llama.cpp's clients, and of evaluations.
  void props(std::shared_ptr<Exchange> exchange);
  void slots_in_use(std::shared_ptr<Exchange> exchange);
  void apply_template(std::shared_ptr<Exchange> exchange);
  void tokenizer_info(std::shared_ptr<Exchange> exchange);
  void page(std::shared_ptr<Exchange> exchange);
  void engine(std::shared_ptr<Exchange> exchange);
  void change_engine(std::shared_ptr<Exchange> exchange);
  void steps(std::shared_ptr<Exchange> exchange);
  void change_lab(std::shared_ptr<Exchange> exchange, const LabSettings& settings);
  // The lab's settings are the server's own again after `time`; 0: they stay.
  void lend_lab(std::chrono::seconds time);

  json::Value model_object(const std::string& name) const;
  json::Value sampling_object() const;
  json::Value adapter_object(const RequestAdapter& adapter) const;
  // Throws ApiError where the server has none.
  ServedAdapters& expect_adapters() const;
  json::Value engine_object() const;
  json::Value vllm_config() const;

  // The weights stay as they are while a lease lives, or an answer of `streams_`.
  using WeightsLease = std::shared_ptr<void>;
  // Calls `task` now, or when the swap that waits or goes on is over.
  void with_weights(std::function<void(WeightsLease)> task);
  // Makes the change when nothing is being computed, and replies to the exchange.
  void change_at_rest(std::shared_ptr<Exchange> exchange, std::function<json::Value()> change);
  void swap_when_free();
  // Takes other weights. Those that a failure leaves in their place have a name of their own.
  void change_weights(const std::function<void()>& take);
  // Goes on with the checkpoint in `directory`, which then has this version's name; the body of the
  // reply is what `reply` makes.
  void take_version(std::shared_ptr<Exchange> exchange, const std::string& directory,
                    const std::string& version, std::function<json::Value()> reply);
  // Does an update by vLLM's names, as its bodies ask for, on the serving thread.
  void update_with(std::shared_ptr<Exchange> exchange, const json::Value& body);
  void call_workers_with(std::shared_ptr<Exchange> exchange, const json::Value& call);
  // A body of safetensors; those of an update are one checkpoint.
  void take_piece(std::shared_ptr<Exchange> exchange);
  std::shared_ptr<WeightSpool> make_spool() const;
  void take_spool(std::shared_ptr<Exchange> exchange, std::shared_ptr<WeightSpool> spool,
                  const std::string& version, const char* said);
  // The tensors that a trainer announced come and nobody takes them: group and update are over.
  void lose_announced(const std::string& why);
  // Tensors from a trainer's GPU.
  void receive_weights(std::shared_ptr<Exchange> exchange, const json::Value& info);
  void receive_announced(std::shared_ptr<Exchange> exchange, const json::Value& info);
  void take_received(std::shared_ptr<Exchange> exchange, const std::string& version,
                     const char* said);
  // Takes the weights of an update, which then have the version's name, or the beginning of their
  // digest where that is empty. `spool`: what they are read from as long as they are served.
  void take_update(std::shared_ptr<Exchange> exchange, std::function<void()> take,
                   std::shared_ptr<WeightSpool> spool, const std::string& version,
                   const char* said);
  // Throw ApiError while tensors are on their way.
  void begin_update();
  void expect_no_transfer() const;
  // Throws ApiError where these are not the weights that are served.
  void expect_version(const json::Value& exact) const;
  Translated::Threads threads_of(const std::string& owner);
  void generate_tokens(std::shared_ptr<Exchange> exchange, bool with_experts);
  void begin_tokens(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                    std::shared_ptr<rollout::GenerateAsked> asked, std::string body);
  using AskedOf = rollout::Asked (*)(const json::Value& body);
  using AnswerOf = json::Value (*)(const rollout::Shown& shown, const json::Value& answer,
                                   const std::string& weight_version);
  // An answer in the form of an RL stack.
  void generate(std::shared_ptr<Exchange> exchange, AskedOf asked_of, AnswerOf answer_of);
  void begin_generating(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                        const rollout::Asked& asked, std::string body, AnswerOf answer_of);
  bool is_held() const { return is_paused_ || asleep_; }
  // Begins what waited, and goes on with what was kept, where nothing holds it any longer.
  void release_held();
  void thaw();
  // Throws ApiError where the engine sleeps, or the weights' memory is given back.
  void expect_awake() const;
  void expect_weights() const;
  void sleep_so(std::shared_ptr<Exchange> exchange, const Sleep& what);
  void wake_so(std::shared_ptr<Exchange> exchange, const Wake& what);
  void note_asleep(const Sleep& what);
  void note_awake(const Wake& what);
  // Computes what waits before the server ends.
  void wake_to_end();
  // Nothing is begun until go_on_generating; the exchange is answered when nothing is computed.
  void hold_answers(std::shared_ptr<Exchange> exchange, json::Value reply);
  void end_swap(const HttpReply& reply);

  // Runs `action` and answers with an error what it throws.
  void guarded(const std::shared_ptr<Exchange>& exchange, const std::function<void()>& action);
  void answer_with(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                   const WeightsLease& lease);
  // On the pool: calls `go`, behind other large things where the request reads much of the journal.
  void behind_reads(std::shared_ptr<Exchange> exchange, std::function<void()> go);
  // Admits the exchange's request and sends its answer to the exchange.
  void admit(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
             const WeightsLease& lease);
  void share_fairly(const HeldSlots& slots, std::vector<Request>& requests) const;
  // Bytes of the journal that a request with this body reads.
  int64_t bytes_read(const HttpRequest& request, const json::Value& body) const;
  // The line of an earlier request with the same Idempotency-Key, if there was one. Throws
  // ApiError when that was another request.
  std::optional<JournalLine> earlier(const HttpRequest& request) const;
  // Whether a line's answer is this owner's: it belongs to the key that made it.
  static bool belongs_to(const std::string& owner, const JournalEntry& entry);
  void submit(std::shared_ptr<Exchange> exchange, std::shared_ptr<Admitted> admitted,
              const WeightsLease& lease);
  void submit_written(std::shared_ptr<Exchange> exchange, std::shared_ptr<Admitted> admitted,
                      const WeightsLease& lease);
  // The relay between an answer and a client that is still to come.
  static std::shared_ptr<Relay> waiting_relay(const Admitted& admitted);
  bool tell_background(Exchange& exchange, const Admitted& admitted,
                       const std::optional<Outcome>& outcome);
  void cancel_waiting(const std::shared_ptr<Exchange>& exchange, const Admitted& admitted);
  std::optional<ApiError> submit_requests(const AnswerStream& stream);
  void begin(const std::shared_ptr<AnswerStream>& stream, const std::optional<ApiError>& error);
  // The answer of an earlier request, without its first `skip` events; as a stream or as a whole,
  // or as it was asked for; or its receipts alone.
  void go_on(std::shared_ptr<Exchange> exchange, const JournalLine& line,
             std::optional<bool> stream, int64_t skip, const WeightsLease& lease,
             bool receipt = false);
  // The answer of a line once more.
  Admitted readmit(const JournalLine& line);
  // A question whose answer is numbers of prompts: calls `task` on a worker, with a slot.
  using Slots = std::shared_ptr<HeldSlots>;
  void ask_with_slot(std::shared_ptr<Exchange> exchange,
                     std::function<void(const Slots&, const WeightsLease&)> task);
  // On the worker; throw ApiError and UsageError. A new question; the one of a line once more, or
  // its receipts alone.
  void begin_question(const std::shared_ptr<Exchange>& exchange, const Slots& slots,
                      const WeightsLease& lease);
  void ask_again(const std::shared_ptr<Exchange>& exchange, const JournalLine& line,
                 const Slots& slots, const WeightsLease& lease, bool receipt_only);
  // `receipt`: of the question, where its answer shows one.
  std::shared_ptr<Embedding> question(const JournalEntry& entry, const json::Value& body,
                                      const std::shared_ptr<Exchange>& exchange, const Slots& slots,
                                      const WeightsLease& lease, bool receipt_only = false) const;
  NumbersAsked ollama_vectors_asked(const HttpRequest& request,
                                    openai::RequestWarnings& warnings) const;
  // In a header of the answer.
  static void warn(Exchange& exchange, const openai::RequestWarnings& warnings);
  void embed(const std::shared_ptr<Embedding>& embedding);
  void begin(const std::shared_ptr<Embedding>& embedding);
  void submit_next(const std::shared_ptr<Embedding>& embedding);
  // For requests that are no answers of the journal's, and whose memory is so much. Throws
  // ApiError.
  void take_places(HeldSlots& slots, std::vector<Request>& requests, size_t bytes) const;
  void resume(const std::vector<JournalLine>& cut_off, const WeightsLease& lease);
  // JSON of the items of the response that this one goes on from, if it does. Throws ApiError where
  // there is none that ended well.
  std::optional<std::string> earlier_items(const std::string& owner, const std::string& path,
                                           const json::Value& body) const;
  // The body of a response with the items in place that it names by their ids. Throws ApiError.
  json::Value with_named_items(const std::string& owner, const std::string& path,
                               json::Value body) const;
  json::Array output_of(const std::string& owner, const std::string& id) const;
  // The items that a later response can go on from, if one may.
  std::optional<Said> said_by(const Admitted& admitted, const json::Value& body) const;
  void keep_output(const AnswerStream& stream);
  void forget_old_lines();
  void warn_of_ignored(const std::vector<std::string>& fields);

  ServerOptions options_;
  const ServedModel& model_;
  Backend& backend_;
  Journal* journal_;  // null: none is kept
  Admission admission_;
  AdmissionSlots slots_;
  int64_t started_;
  std::string engine_failure_;                                       // empty: it works
  std::unordered_map<std::string, std::shared_ptr<Relay>> waiting_;  // resumed, without a client
  std::mutex noting_;                                                // guards what follows
  int64_t next_forgetting_ = 0;                                      // seconds
  std::set<std::string> warned_;
  // State of the serving thread: who uses the weights, who wants to change them, who waits for
  // that.
  struct Swap {
    std::shared_ptr<Exchange> exchange;
    std::function<json::Value()> change;  // on the worker; returns the reply's body
    bool has_begun = false;
  };
  size_t leases_ = 0;
  std::optional<Swap> swap_;
  std::vector<std::function<void(WeightsLease)>> behind_swap_;
  // State of RL stacks: whether nothing is begun, who waits until nothing is computed, the name of
  // the weights, their digest when a checker was told to remember it, an update that has begun, the
  // weights that came in bodies and are served.
  bool is_paused_ = false, keeps_answers_ = false;
  std::optional<Sleep> asleep_;  // and what the engine has given back
  bool is_ending_ = false;
  std::vector<std::pair<std::shared_ptr<Exchange>, std::string>> until_rest_;
  static constexpr const char* kFirstWeights = "default";
  std::string weight_version_ = kFirstWeights, remembered_weights_;
  struct Update {
    std::string directory;
    std::shared_ptr<WeightSpool> spool;
    bool is_received = false;  // by NCCL
    std::string wrong;         // where a part of it failed
  };
  std::optional<Update> update_;
  std::shared_ptr<WeightSpool> spool_;
  LabSettings lab_own_;              // that the server was started with
  std::shared_ptr<void> lab_lease_;  // HttpServer::at
  const StopSignals signals_;        // caught from the first word on that says that it serves
  HttpServer http_;
  AnswerStreams streams_;
  std::unique_ptr<BatchStore> store_;  // null: there is no journal
  std::unique_ptr<Batches> batches_;
  // Goes after the workers, who ask the backend, and before the answers, to which it speaks.
  struct BackendStopper {
    Backend& backend;
    ~BackendStopper() { backend.stop(); }
  } stopper_{backend_};
  std::atomic<bool> trimming_ = false;
  bool had_forms_ = false;  // answers since the last that ended when no other was made
  Transfers transfers_;
  Worker changes_;  // of the engine: its weights, its memory, the lab's settings
  FairPool pool_;   // all else that may take long
};

}  // namespace invar::server
