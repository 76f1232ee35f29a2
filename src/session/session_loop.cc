// The loop that callers of the public API drive themselves.
#include "frontend/answer_receipt.h"
#include "session/session_impl.h"
#include "session/session_request.h"

namespace invar {

int64_t Session::add(std::string_view prompt, const GenerateOptions& options) {
  return add(std::span<const int32_t>(tokenize(prompt)), options);
}
int64_t Session::add(std::span<const int32_t> prompt, const GenerateOptions& options) {
  const Impl::Awake at = impl_->awake();
  Request request = impl_->request(at.running, {prompt.begin(), prompt.end()}, options);
  if (!options.receipt) return at->loop.add(std::move(request), at->driven);
  Receipt head = impl_->receipt_head(at.running, request);
  const std::lock_guard lock(at->noting);
  const int64_t id = at->loop.add(std::move(request), at->driven);
  at->heads.emplace(id, std::move(head));
  return id;
}
void Session::cancel(int64_t id) {
  const Impl::Awake at = impl_->awake();
  at->loop.cancel(id, at->driven);
  const std::lock_guard lock(at->noting);
  at->heads.erase(id);
}
bool Session::has_work() const {
  if (is_sleeping()) return false;
  const Impl::Awake at = impl_->awake();
  return at->loop.has_live(at->driven);
}
std::vector<Update> Session::step() {
  const Impl::Awake at = impl_->awake();
  std::vector<Update> updates;
  for (AnswerEvent& event : at->loop.next(at->driven)) {
    Update& update = updates.emplace_back(Update{.id = event.id});
    if (event.token) {
      update.token = shown(event);
      continue;
    }
    const std::lock_guard lock(at->noting);
    const auto head = at->heads.extract(event.id);
    if (event.answer->finish == FinishReason::failed)
      update.error = event.answer->error;
    else
      update.generation =
          impl_->finished({.receipt = !head.empty()}, head.empty() ? Receipt() : head.mapped(),
                          std::move(*event.answer));
  }
  return updates;
}

}  // namespace invar
