// The members of a Session (include/invar/invar.h), for the files that make up its calls.
#pragma once

#include <invar/invar.h>

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>

#include "frontend/chat_template.h"
#include "frontend/constraint_compiler.h"
#include "frontend/receipt.h"
#include "session/adapter.h"
#include "session/engine_loop.h"
#include "session/instance.h"
#include "session/updated_weights.h"

namespace invar {

struct Session::Impl {
  // The model and its engine while they run.
  struct Running {
    Running(const InstanceOptions& options, std::shared_ptr<Model> model,
            const Tokenizer& tokenizer)
        : instance(options, std::move(model)), loop(instance.engine(), tokenizer), driven(loop) {}
    Engine& engine() { return instance.engine(); }
    Model& model() { return instance.model(); }

    Instance instance;
    EngineLoop loop;
    EngineLoop::Mailbox driven;                  // of requests that were added
    std::mutex noting;                           // guards what follows
    std::unordered_map<int64_t, Receipt> heads;  // of those that want receipts
  };
  // While it lives the session does not go to sleep.
  struct Awake {
    std::shared_lock<std::shared_mutex> lock;
    Running& running;
    Running* operator->() const { return &running; }
  };

  explicit Impl(const SessionOptions& asked);

  // Throws UsageError while it sleeps; the second only while the weights' memory is given back.
  Awake awake();
  Awake with_weights();
  Request request(Running& running, std::vector<int32_t> prompt, const GenerateOptions& options);
  Generation finished(const GenerateOptions& options, const Receipt& head, TextAnswer answer);
  // Throws UsageError where there are none of the model's answers.
  void expect_receipts() const;
  ReceiptModel answering_model(Running& running);
  // The receipt's part beside the answer. Checks the request's parameters.
  Receipt receipt_head(Running& running, Request& request);
  std::vector<Generation> generate(std::vector<Query> queries, const OnToken& on_token,
                                   const OnStep& on_step);
  Generation generate_one(std::vector<int32_t> prompt, const GenerateOptions& options,
                          const OnToken& on_token) {
    return std::move(generate({{std::move(prompt), options}}, on_token, {}).front());
  }
  // The answers, or the vectors, to requests that need no token on the way.
  std::vector<AnswerEvent> last_events(std::vector<Request> requests, const OnStep& on_step);
  std::string rendered(const Conversation& conversation);
  const ChatTemplate* found_chat();  // null: there is none, as no_chat says; under `compiling`
  std::vector<int32_t> tokens_of(std::span<const Message> messages);
  std::string digest_of_weights(Running& running);
  // Those of only_on_gpu are copied to `updated`.
  void keep_what_is_on_gpu(Running& running);

  InstanceOptions options;
  Tokenizer tokenizer;
  ReceiptKey receipt_key;
  std::mutex compiling;  // guards what follows
  ConstraintCompiler constraints;
  std::optional<ChatTemplate> chat;           // opened when a conversation comes
  std::string no_chat;                        // why there is none
  std::optional<ReceiptModel> receipt_model;  // when a receipt does
  OpenedAdapters adapters;

  std::shared_mutex sleeping;  // guards what follows, but for what Running guards itself
  std::unique_ptr<Running> running;
  Sleep asleep{.kv_cache = false};                 // what was given back, and not asked for again
  UpdatedTensors updated;                          // all so far but for what follows; between steps
  std::set<std::string, std::less<>> only_on_gpu;  // matrices that came from there: no copy is here
  std::string identity;                            // of the model, asleep or not
  LogprobsMode logprobs_mode;                      // of requests that do not say it
  bool is_normalized = false;                      // vectors of texts
  int vocabulary = 0, hidden = 0, layers = 0, context = 0;
};

}  // namespace invar
