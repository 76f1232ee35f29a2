// From a request for an answer to what the backend is given of it.
#include "api.h"

#include "base/ends.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

std::shared_ptr<HeldSlots> Server::take_slot(Exchange& exchange) {
  auto slots = std::make_shared<HeldSlots>(slots_, options_.keys.owner(exchange.request));
  if (!slots->grow_to(1))
    throw ApiError{
        429, fmt::format("{} answers are being made or wait: more are refused", slots_.taken()),
        "queue_full"};
  exchange.slots = slots;
  return slots;
}

void Server::answer(std::shared_ptr<Exchange> exchange) {
  const auto slots = take_slot(*exchange);
  with_weights([=, this](const WeightsLease& lease) { answer_with(exchange, slots, lease); });
}

void Server::answer_with(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                         const WeightsLease& lease) {
  if (weight_version_ != kFirstWeights)
    exchange->more_headers.emplace_back("X-Weight-Version", weight_version_);
  pool_.post(reading(exchange->request), [=, this] {
    const bool is_much = exchange->request.body.size() > FairPool::kBig;
    behind_reads(exchange, [=, this] { admit(exchange, slots, lease); });
    if (is_much) trim_memory();
  });
}

void Server::behind_reads(std::shared_ptr<Exchange> exchange, std::function<void()> task) {
  const auto go = [=, this] { guarded(exchange, task); };
  guarded(exchange, [&] {
    const HttpRequest& request = exchange->request;
    const bool is_known = is_large(std::ssize(request.body)) || !journal_;
    const int64_t bytes = is_known ? 0 : bytes_read(request, parse_body(request.body));
    if (!is_large(bytes)) return go();
    pool_.post(FairPool::reading(options_.keys.owner(request), static_cast<size_t>(bytes)), go);
  });
}

void Server::admit(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                   const WeightsLease& lease) {
  if (const auto known = earlier(exchange->request)) {
    slots->give_back();
    return go_on(exchange, *known, std::nullopt, 0, lease);
  }
  const HttpRequest& request = exchange->request;
  const std::string owner = options_.keys.owner(request);
  const json::Value body = with_named_items(owner, request.path, parse_body(request.body));
  const auto before = earlier_items(owner, request.path, body);
  const auto admitted =
      std::make_shared<Admitted>(admission_.admit(request, owner, body, before, slots));
  admitted->was_large = request.body.size() > FairPool::kBig;
  if (!options_.keys.is_admin(request)) share_fairly(*admitted->slots, admitted->requests);
  warn_of_ignored(admitted->request.ignored);
  warn(*exchange, admitted->request.warnings);
  streams_.number(admitted->requests);
  if (!journal_ && admitted->request.background)
    throw ApiError{400, "background needs a server with a journal (--journal)",
                   "unsupported_parameter", "background"};
  if (!journal_) return submit(exchange, admitted, lease);
  forget_old_lines();
  const auto written = [this, exchange, admitted, lease](const std::string& error) {
    if (error.empty()) return submit_written(exchange, admitted, lease);
    pool_.post(reading(exchange->request), [=, this] {
      guarded(exchange, [&] {  // unless its twin was faster
        if (const auto twin = earlier(exchange->request)) {
          admitted->slots->give_back();
          return go_on(exchange, *twin, std::nullopt, 0, lease);
        }
        throw ApiError{503, "the request cannot be written to the journal: " + error};
      });
    });
  };
  journal_->admit(admitted->entry, said_by(*admitted, body), written);
}

void Server::warn(Exchange& exchange, const openai::RequestWarnings& warnings) {
  if (warnings.all().empty()) return;
  exchange.more_headers.emplace_back("X-Invar-Warning",
                                     fmt::format("{}", fmt::join(warnings.all(), "; ")));
}

void Server::share_fairly(const HeldSlots& slots, std::vector<Request>& requests) const {
  if (!options_.fair_by_key) return;
  for (Request& request : requests) request.owner = slots.owner_number();
}

// Once for each name, and for not too many: names are what clients make of them.
void Server::warn_of_ignored(const std::vector<std::string>& fields) {
  constexpr size_t kMostNames = 64, kLongest = 64;
  const std::lock_guard lock(noting_);
  for (const std::string& field : fields) {
    if (warned_.size() >= kMostNames) return;
    const std::string name = field.substr(0, kLongest);
    if (warned_.insert(name).second)
      fmt::print(stderr, "invar: warning: the field {} of a request is not known and is ignored\n",
                 json::quoted(name));
  }
}

std::optional<JournalLine> Server::earlier(const HttpRequest& request) const {
  const std::string* key = request.header("idempotency-key");
  if (!key || key->empty() || !journal_) return std::nullopt;
  const std::optional<JournalLine> line = journal_->find_key(options_.keys.owner(request), *key);
  if (!line) return std::nullopt;
  if (!belongs_to(options_.keys.owner(request), line->entry))
    throw ApiError{409,
                   "the Idempotency-Key was used before the journal knew whose its lines are: use "
                   "another one"};
  const Digest body = sha256(std::as_bytes(std::span(request.body)));
  if (line->entry.body != body || line->entry.endpoint != request.path)
    throw ApiError{422, "the Idempotency-Key was used before, for another request"};
  return line;
}

bool Server::belongs_to(const std::string& owner, const JournalEntry& entry) {
  return entry.owner == owner || (entry.owner == kUnknownOwner && owner.empty());
}

// Called on any thread. The backend refuses requests that make no sense before anything of the
// answer is sent.
void Server::submit(std::shared_ptr<Exchange> exchange, std::shared_ptr<Admitted> admitted,
                    const WeightsLease& lease) {
  http_.post([this, exchange = std::move(exchange), admitted = std::move(admitted), lease] {
    exchange->drop_body();
    std::string().swap(admitted->entry.request);
    std::shared_ptr<AnswerStream> stream;
    const std::string id = admitted->entry.id;
    guarded(exchange, [&] {  // its stop strings may be none
      stream = std::make_shared<AnswerStream>(std::move(*admitted), exchange, *model_.tokenizer,
                                              streams_);
    });
    if (!stream) {
      if (journal_) journal_->end(id, Outcome::failed);
      return;
    }
    // Before the requests are submitted: a fast engine's first tokens must find it.
    streams_.add(stream);
    if (exchange->is_answered()) return streams_.cancel(*stream);  // its deadline has passed
    // Weak: the answer holds its exchange, whose client may have gone already.
    exchange->on_gone = [this, weak = std::weak_ptr(stream)] {
      if (const auto begun = weak.lock()) streams_.cancel(*begun);
    };
    exchange->on_deadline = [this, weak = std::weak_ptr(stream)] {
      if (const auto late = weak.lock()) streams_.expire(*late);
    };
    // A form may take long to compile, which is worth waking another thread; nothing else is.
    if (first_of(stream->admitted().requests).structured_output.empty())
      return begin(stream, submit_requests(*stream));
    const FairPool::Task compiling{FairPool::Kind::slow, stream->admitted().entry.owner};
    pool_.post(compiling, [this, stream, lease] {
      http_.post([this, stream, error = submit_requests(*stream)] { begin(stream, error); });
    });
  });
}

// Returns why the backend does not take them, or nothing.
std::optional<ApiError> Server::submit_requests(const AnswerStream& stream) {
  try {
    for (const Request& request : stream.admitted().requests) backend_.submit(request);
  } catch (const EngineFailed& error) {
    return ApiError{503, error.what(), "engine_failed"};
  } catch (const FormsFull& error) {
    return ApiError{429, error.what(), "queue_full"};
  } catch (const Error& error) {  // of its form
    return refusal_of(FieldError(stream.admitted().request.form_field, error.what()), {});
  }
  return std::nullopt;
}

void Server::begin(const std::shared_ptr<AnswerStream>& stream,
                   const std::optional<ApiError>& error) {
  if (stream->is_over()) return streams_.withdraw(*stream);
  if (error) refuse(stream->exchange(), *error);
  error || stream->exchange().is_gone() ? streams_.cancel(*stream) : stream->begin();
}

}  // namespace invar::server
