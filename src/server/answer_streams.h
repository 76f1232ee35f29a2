// Answers that are being computed: hands what the backend says to the exchanges that wait for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "admission.h"
#include "backend.h"
#include "embedding.h"
#include "errors.h"
#include "frontend/answer_times.h"
#include "frontend/anthropic.h"
#include "frontend/openai_events.h"
#include "frontend/responses.h"
#include "http.h"
#include "metrics.h"
#include "request_log.h"
#include "step_trace.h"

namespace invar::server {

class AnswerStreams;

// One request's answer on its way to one client. Lives on the serving thread.
class AnswerStream : public BodySource, public std::enable_shared_from_this<AnswerStream> {
 public:
  // `answers` is told when a stream comes to an end.
  AnswerStream(Admitted admitted, std::shared_ptr<Exchange> exchange, const Tokenizer& tokenizer,
               AnswerStreams& streams);

  // Begins to stream, or waits for the whole.
  void begin();
  // `cached`: tokens of the request's prompt that the prefix cache had. Once for each request.
  void on_begun(size_t index, int64_t cached);
  void on_token(size_t index, const TokenOutput& output);
  void on_prompt(size_t index, const PromptOutput& output);
  bool pull(std::string& out) override;

  const Admitted& admitted() const { return admitted_; }
  Exchange& exchange() const { return *exchange_; }
  // Answer i needs no more tokens, though the backend may not know: a stop string, or a failure of
  // another request.
  bool is_over(size_t index) const;
  bool is_over() const { return over_; }
  // The items that a response has put out to its end; null before, and of other answers.
  const json::Value* output() const { return output_.is_null() ? nullptr : &output_; }

 private:
  friend class AnswerStreams;
  std::unique_ptr<openai::StreamWriter> make_writer() const;
  void remember_output(const TextAnswer& answer);
  void set_cached(size_t index, int64_t tokens);
  void set_all_cached(int64_t tokens);
  void finish();
  HttpReply failed_reply(const std::string& error) const;
  // Ends it before its time with an error.
  void cut_off(const ApiError& error, Outcome outcome = Outcome::aborted);
  void push_waiting(std::string& out);
  // Its slots and memory, before its client has the answer.
  void give_back();
  // So far.
  AnswerTimes shown_times() const;
  // Or with what there is of it.
  void abort();
  // Says again what was said of a prompt whose answer has not begun.
  void restart(size_t index);
  // Its answer to request `index` goes on with other weights from token number `first` on.
  void change_weights(size_t index, const std::string& before, const std::string& now,
                      size_t first);

  Admitted admitted_;
  std::shared_ptr<Exchange> exchange_;
  const Tokenizer& tokenizer_;
  AnswerStreams& streams_;
  std::unique_ptr<openai::StreamWriter> writer_;          // of a stream
  std::vector<std::pair<size_t, TokenOutput>> waiting_;   // until the client takes them
  std::vector<std::unique_ptr<AnswerBuilder>> builders_;  // of a whole answer
  size_t unfinished_ = 0;
  size_t prompts_to_begin_ = 0;
  int64_t cached_ = 0;             // tokens of those that have begun
  bool is_unsettled_ = false;      // their number is on its way to the journal
  std::vector<TokenOutput> held_;  // meanwhile
  bool begun_ = false, over_ = false;
  std::optional<ApiError> cut_off_;
  Outcome outcome_ = Outcome::finished;
  bool known_ = false;                        // to `streams_`
  RequestTimes times_;                        // its arrival is the exchange's
  int64_t tokens_ = 0, longest_ = 0;          // of all its answers, of the longest
  FinishReason finish_ = FinishReason::none;  // of the last request that finished
  json::Value output_;
};

// Knows which request belongs to which answer. All but the sink's functions on the serving thread.
class AnswerStreams final : public BackendSink {
 public:
  // `post` runs a task on the serving thread, `ended` hears of every answer that is over but those
  // that the engine's failure ends: another server can still compute them.
  AnswerStreams(Backend& backend, std::function<void(std::function<void()>)> post,
                std::function<void(const AnswerStream&, Outcome)> ended)
      : backend_(backend), post_(std::move(post)), ended_(std::move(ended)) {}

  Metrics metrics;
  StepLog steps;
  std::optional<StepTrace> trace;         // --trace-steps; before the backend starts
  std::optional<RequestLog> request_log;  // --log-requests
  std::function<void()> on_large;         // much memory was given back; from any thread
  std::function<void(const std::string&)> on_engine_failed;  // on the serving thread
  // Says which number of cached tokens an answer shows, where one is remembered: its first.
  std::function<void(const std::string& id, int64_t tokens, std::function<void(int64_t)> done)>
      settle_cached;

  // Gives the requests their ids. From any thread; before `add`.
  void number(std::vector<Request>& requests);
  // Expects outputs for the answer's requests from now on. They may be submitted after this.
  void add(std::shared_ptr<AnswerStream> stream);
  void add(std::shared_ptr<Embedding> embedding);
  // Ends an answer before its time.
  void cancel(AnswerStream& stream);
  void cancel(Embedding& embedding);
  // Takes back an answer's requests once the backend has them: the answer was ended while they were
  // on their way to it.
  void withdraw(const AnswerStream& stream);
  // As cancel, and tells the client that its time is up.
  void expire(AnswerStream& stream);
  // Ends all that there are: completions and chats with what there is of them, finish_reason abort,
  // others with this error.
  void end_all(const ApiError& error) {
    end_those(error, [](const AnswerStream&) { return true; });
  }
  // The same of those that `which` says. Returns how many there were.
  int64_t end_those(const ApiError& error, const std::function<bool(const AnswerStream&)>& which);
  // Forgets a request that is over, and the answer when it is.
  void settle(AnswerStream& stream, size_t index);
  void settle(AnswerStream& stream);
  // All of its prompts have begun: shows nothing of it until `settle_cached` has said what it shows
  // of the prefix cache.
  void settle_usage(std::shared_ptr<AnswerStream> stream);
  size_t size() const { return live_; }
  // Takes all answers back from the backend, where they have been computed by the weights of this
  // version; they stay as they are. While nothing is on its way to the backend.
  void freeze(const std::string& version);
  bool is_frozen() const { return is_frozen_; }
  // The requests to submit so that the answers go on, by these weights.
  std::vector<Request> thaw(const std::string& version);
  // Those that the backend computes.
  size_t computed() const { return is_frozen_ ? texts_.size() : live_; }

  void on_token(const TokenOutput& output) override;
  void on_prompt(const PromptOutput& output) override;
  void on_pooled(const PooledOutput& output) override;
  void on_begun(const RequestBegun& begun) override;
  void on_step(const StepRecord& step) override;
  void on_step_end() override;
  void on_failure(const std::string& sentence) override;

 private:
  struct Streamed {
    std::shared_ptr<AnswerStream> stream;
    size_t index;
    bool begun = false;
    std::vector<int32_t> tokens = {};  // so far, and their hash
    Digest logits_hash = {};
  };
  struct Text {
    std::shared_ptr<Embedding> embedding;
    size_t index;
  };
  void forget(const AnswerStream& stream, size_t index);
  // Once: forgets what is left of it, and gives back what it holds.
  void release(AnswerStream& stream);
  void deliver();
  void deliver_numbers(int64_t request, std::vector<float> numbers);
  void take_number(const TokenOutput& output);
  void settle(Embedding& embedding);
  void fail_all(const std::string& sentence);
  // An answer that cannot be written, for whatever reason, fails alone.
  void guarded(AnswerStream& stream, const std::function<void()>& action);
  void note_begin(const RequestBegun& begun);
  void take(const TokenOutput& output);
  void measure(AnswerStream& stream, const TokenOutput& output);
  void measure_end(const AnswerStream& stream);

  Backend& backend_;
  std::function<void(std::function<void()>)> post_;
  std::function<void(const AnswerStream&, Outcome)> ended_;
  std::unordered_map<int64_t, Streamed> streamed_;
  std::unordered_map<int64_t, Text> texts_;
  size_t live_ = 0;
  bool is_frozen_ = false;
  std::string frozen_version_;

  std::mutex mutex_;  // guards what follows
  std::vector<RequestBegun> begun_;
  std::vector<TokenOutput> tokens_;
  std::vector<PromptOutput> prompts_;
  std::vector<PooledOutput> vectors_;
  bool delivery_is_posted_ = false;
  int64_t next_id_ = 1;
};

}  // namespace invar::server
