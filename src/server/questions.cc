// Questions whose answers are numbers (frontend/questions.h): their lines of the journal and their
// receipts. A line has the question as it was asked; the answer is what it comes to, again.
#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "frontend/body_fields.h"
#include "frontend/numbers_receipt.h"

namespace invar::server {

namespace {

// Vectors of texts are asked for by the million, and nobody asks for one again.
bool is_kept(std::string_view path) {
  return path != "/v1/embeddings" && path != "/pooling";
}

// A receipt's text, its canonical form and the answer with it.
size_t receipt_bytes(const JournalEntry& entry, size_t requests) {
  constexpr size_t kRest = 4096, kNumber = 256;
  return 4 * entry.request.size() + kNumber * requests + kRest;
}

}  // namespace

void Server::ask_with_slot(std::shared_ptr<Exchange> exchange,
                           std::function<void(const Slots&, const WeightsLease&)> task) {
  const Slots slots = take_slot(*exchange);
  with_weights([=, this](const WeightsLease& lease) {
    pool_.post(reading(exchange->request),
               [=, this] { behind_reads(exchange, [=] { task(slots, lease); }); });
  });
}

void Server::ask(std::shared_ptr<Exchange> exchange) {
  ask_with_slot(exchange, [=, this](const Slots& slots, const WeightsLease& lease) {
    begin_question(exchange, slots, lease);
  });
}

void Server::begin_question(const std::shared_ptr<Exchange>& exchange, const Slots& slots,
                            const WeightsLease& lease) {
  const HttpRequest& request = exchange->request;
  const bool is_line = journal_ && is_kept(request.path);
  const auto known = is_line ? earlier(request) : std::nullopt;
  if (known) return ask_again(exchange, *known, slots, lease, false);
  const json::Value body = parse_body(request.body);
  JournalEntry entry = admission_.question_entry(request, options_.keys.owner(request));
  if (is_line || (body.is_object() && BodyFields(body).read_flag("receipt", false)))
    entry.request = json::dump(body);
  const auto embedding = question(entry, body, exchange, slots, lease);
  if (!is_line) return embed(embedding);
  forget_old_lines();
  embedding->ended = [this, id = entry.id](Outcome outcome) { journal_->end(id, outcome); };
  journal_->admit(
      std::move(entry), std::nullopt,
      [this, exchange, embedding, slots, lease](const std::string& error) {
        if (error.empty()) return embed(embedding);
        pool_.post(reading(exchange->request), [=, this] {
          guarded(exchange, [&] {  // unless its twin was faster
            if (const auto twin = earlier(exchange->request))
              return ask_again(exchange, *twin, slots, lease, false);
            throw ApiError{503, "the request cannot be written to the journal: " + error};
          });
        });
      });
}

void Server::ask_again(const std::shared_ptr<Exchange>& exchange, const JournalLine& line,
                       const Slots& slots, const WeightsLease& lease, bool receipt_only) {
  const JournalEntry& entry = line.entry;
  Admission::expect_same_model(entry, admission_.answering_model());
  embed(question(entry, parse_body(entry.request), exchange, slots, lease, receipt_only));
}

std::shared_ptr<Embedding> Server::question(const JournalEntry& entry, const json::Value& body,
                                            const std::shared_ptr<Exchange>& exchange,
                                            const Slots& slots, const WeightsLease& lease,
                                            bool receipt_only) const {
  NumbersAsked asked =
      numbers_asked(entry.endpoint, body, admission_.question_texts(entry.owner, entry.created));
  const bool shows = receipt_only || BodyFields(body).read_flag("receipt", false);
  NumbersReceipt receipt = admission_.question_receipt(entry);
  if (shows) admission_.expect_receipts(receipt.model);
  take_places(*slots, asked.requests,
              asked.bytes + (shows ? receipt_bytes(entry, asked.requests.size()) : 0));
  const auto made = [=, body_of = std::move(asked.body), key = model_.receipt_key,
                     receipt = std::move(receipt)](const Numbers& numbers) {
    NumbersHead head = head_of(receipt);
    if (shows) head.receipt = signed_receipt(receipt, numbers, *key);
    if (!receipt_only) return body_of(numbers, head);
    return json::dump(json::Object{{"object", "list"}, {"data", json::Array{head.receipt}}});
  };
  return std::make_shared<Embedding>(std::move(asked.requests), made, exchange, slots, lease);
}

}  // namespace invar::server
