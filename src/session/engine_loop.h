// An engine that several threads use, without a thread of its own: who waits for tokens computes
// the next step, for all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine_driver.h"
#include "frontend/text_engine.h"

namespace invar {

// News of a request: a token with its text, its end, or the vector that it asked for.
struct AnswerEvent {
  int64_t id = 0;
  std::optional<TokenOutput> token;
  std::string text;                  // complete characters that can be shown now
  std::optional<TextAnswer> answer;  // whole; no event follows
  std::vector<float> vector;         // likewise
};

class EngineLoop final : private TextSink {
 public:
  // Both outlive it.
  EngineLoop(Engine& engine, const Tokenizer& tokenizer)
      : driver_(engine), text_(engine, tokenizer) {}

  // Where the events of some requests go. When it ends, those of them that live are cancelled. For
  // one thread at a time; the loop outlives it.
  class Mailbox {
   public:
    explicit Mailbox(EngineLoop& loop) : loop_(loop) {}
    ~Mailbox();
    Mailbox(const Mailbox&) = delete;

   private:
    friend class EngineLoop;
    EngineLoop& loop_;
    std::vector<AnswerEvent> events_;
  };

  // Throws UsageError for a request that can never be answered. Returns its id.
  int64_t add(Request request, Mailbox& mailbox);
  // Nothing more is heard of it; ids that are none of the mailbox's are ignored.
  void cancel(int64_t id, Mailbox& mailbox);
  // The events since the last call; where there were none, one step is computed first.
  std::vector<AnswerEvent> next(Mailbox& mailbox);
  bool has_live(const Mailbox& mailbox);
  // The answers, or the vectors, to requests that need no token on the way. `on_step` is told after
  // each step how many are there.
  std::vector<AnswerEvent> last_events(std::vector<Request> requests,
                                       const std::function<void(size_t answered)>& on_step);
  // Calls `task` with the engine while no step is computed.
  template <typename Task>
  auto between_steps(Task task) {
    return driver_.between_steps(task);
  }

 private:
  void on_text(int64_t id, std::string_view piece, const TokenOutput& token) override;
  void on_finished(int64_t id, const TextAnswer& answer) override;
  void on_vector(int64_t id, const std::vector<float>& vector) override;
  bool is_live(const Mailbox& mailbox) const;

  EngineDriver driver_;  // whose turns guard what follows
  TextEngine text_;
  std::unordered_map<int64_t, Mailbox*> mailboxes_;  // of live requests
};

}  // namespace invar
