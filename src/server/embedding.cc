// Endpoints whose answers are numbers of prompts; those of vectors.
#include "embedding.h"

#include <openssl/evp.h>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "engine/pooled_vector.h"
#include "frontend/body_fields.h"

namespace invar::server {

namespace {

// A list of numbers, or the bytes of little-endian f32 in base64, as OpenAI's clients ask.
json::Value embedding_value(std::span<const float> vector, bool base64) {
  if (!base64) {
    json::Array numbers;
    for (const float number : vector) numbers.emplace_back(static_cast<double>(number));
    return numbers;
  }
  const size_t bytes = vector.size_bytes();
  std::string text((bytes + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(vector.data()),
                                   static_cast<int>(bytes));
  text.resize(static_cast<size_t>(size));
  return text;
}

// How vectors are shown.
struct Form {
  const char* object = "embedding";  // of each
  const char* key = "embedding";     // of its numbers
  bool base64 = false;
  std::optional<int32_t> dimensions;  // only the first so many
  bool normalize = false;             // to length 1
};

// JSON, vector by vector: as values all of them would take many times their bytes.
std::string body_of(const Numbers& vectors, const Form& form, int64_t tokens,
                    const std::string& model, const std::string& fingerprint) {
  std::string body;
  json::ObjectWriter out(body);
  json::append_quoted(out.member("object"), "list");
  std::string& data = out.member("data") += '[';
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto vector = shown_vector(vectors[i], form.dimensions, form.normalize);
    data += i == 0 ? "" : ", ";
    json::append(data, json::Object{{"object", form.object},
                                    {"index", static_cast<int64_t>(i)},
                                    {form.key, embedding_value(vector, form.base64)}});
  }
  data += ']';
  json::append_quoted(out.member("model"), model);
  json::append_quoted(out.member("system_fingerprint"), fingerprint);
  json::append(out.member("usage"),
               json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}});
  out.end();
  return body;
}

}  // namespace

const Request* Embedding::next() {
  if (over_ || begun_ == asked_.requests.size() || begun_ - there_ >= kAtOnce) return nullptr;
  return &asked_.requests[begun_++];
}

void Embedding::on_vector(size_t index, std::vector<float> numbers) {
  if (over_) return;
  vectors_[index] = std::move(numbers);
  if (++there_ < vectors_.size()) return more();
  over_ = true;
  full();
}

void Embedding::fail(const std::string& sentence) {
  if (over_) return;
  over_ = true;
  failed(sentence);
}

size_t vectors_bytes(const std::vector<Request>& requests, int32_t vector_size, bool base64) {
  constexpr size_t kText = sizeof(Request) + 256;
  const size_t shown = base64 ? 6 : 24;  // bytes of a number of the answer
  size_t bytes = requests.size() * (kText + static_cast<size_t>(vector_size) * (4 + shown));
  for (const Request& request : requests) bytes += request.prompt.size() * sizeof(int32_t);
  return bytes;
}

void Server::embeddings(std::shared_ptr<Exchange> exchange) {
  ask_numbers(std::move(exchange), &Server::vectors_asked);
}

// POST /v1/embeddings and /pooling.
NumbersAsked Server::vectors_asked(const HttpRequest& request, const json::Value& body) const {
  NumbersAsked asked;
  int64_t tokens = 0;
  for (auto& text : admission_.embedded(body)) {
    tokens += std::ssize(text);
    asked.requests.push_back({.prompt = std::move(text), .hash_logits = false, .pooled = true});
  }
  const bool is_pooling = request.path == "/pooling";
  if (!is_pooling && model_.relevance == Relevance::cross)
    fail_usage("the model is a cross-encoder, whose scores of pairs are no embeddings");
  const json::Value* format = body.find("encoding_format");
  const Form form{
      .object = is_pooling ? "pooling" : "embedding",
      .key = is_pooling ? "data" : "embedding",
      .base64 = format && *format == json::Value("base64"),
      .dimensions = admission_.dimensions(body),
      .normalize = BodyFields(body).read_flag("normalize", model_.normalizes_embeddings)};
  asked.bytes = vectors_bytes(asked.requests, backend_.facts().vector_size, form.base64);
  asked.body = [form, tokens, model = first_of(model_.names),
                fingerprint = admission_.fingerprint()](const Numbers& vectors) {
    return body_of(vectors, form, tokens, model, fingerprint);
  };
  return asked;
}

void Server::ask_numbers(std::shared_ptr<Exchange> exchange, AskNumbers ask) {
  const auto slots = take_slot(exchange->request);
  with_weights([=, this](const WeightsLease& lease) {
    pool_.post(reading(exchange->request), [=, this] {
      guarded(exchange, [&] {
        NumbersAsked asked = (this->*ask)(exchange->request, parse_body(exchange->request.body));
        take_places(*slots, asked.requests, asked.bytes);
        embed(std::make_shared<Embedding>(std::move(asked), exchange, slots, lease));
      });
    });
  });
}

// One for each text that is computed at the same time, ranked as answers are.
void Server::take_places(HeldSlots& slots, std::vector<Request>& requests, size_t bytes) const {
  const size_t places = std::min({requests.size(), Embedding::kAtOnce, slots.of().most_of_owner()});
  if (!slots.grow_to(places))
    throw ApiError{429,
                   fmt::format("the server makes at most {} answers at the same time, {} are being "
                               "made or wait and {} more are asked for",
                               slots.of().most(), slots.of().taken(), places),
                   "queue_full"};
  hold_memory(slots, bytes);
  if (!options_.fair_by_key) return;
  const int32_t rank = slots.rank(0);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].priority = rank + static_cast<int32_t>(i % places);
}

// On the worker: the texts are computed from now on, and the body is made on the worker again.
void Server::embed(const std::shared_ptr<Embedding>& embedding) {
  embedding->full = [this, weak = std::weak_ptr(embedding)] {
    const auto embedding = weak.lock();
    pool_.post(slow(embedding->exchange->request), [=, this] {
      guarded(embedding->exchange, [&] {
        const auto reply = std::make_shared<HttpReply>();
        reply->body = embedding->body();
        http_.post([this, embedding, reply] {
          embedding->exchange->reply(std::move(*reply));
          if (embedding->requests().size() > Embedding::kAtOnce) trim_memory();
        });
      });
    });
  };
  embedding->failed = [this, weak = std::weak_ptr(embedding)](const std::string& sentence) {
    refuse(*weak.lock()->exchange, {500, "the request failed: " + sentence});
  };
  streams_.number(embedding->requests());
  http_.post([this, embedding] { begin(embedding); });
}

void Server::begin(const std::shared_ptr<Embedding>& embedding) {
  Exchange& exchange = *embedding->exchange;
  if (exchange.is_answered() || exchange.is_gone()) return;  // its deadline has passed
  exchange.drop_body();
  streams_.add(embedding);
  // Weak: it holds its exchange, whose client may have gone already.
  exchange.on_gone = [this, weak = std::weak_ptr(embedding)] {
    if (const auto begun = weak.lock()) streams_.cancel(*begun);
  };
  exchange.on_deadline = [this, weak = std::weak_ptr(embedding)] {
    const auto late = weak.lock();
    if (!late || late->is_over()) return;
    streams_.cancel(*late);
    refuse(*late->exchange, {504, kTooLate, "deadline_exceeded"});
  };
  embedding->more = [this, weak = std::weak_ptr(embedding)] {
    if (const auto begun = weak.lock()) submit_next(begun);
  };
  submit_next(embedding);
}

void Server::submit_next(const std::shared_ptr<Embedding>& embedding) {
  Exchange& exchange = *embedding->exchange;
  try {
    while (const Request* request = embedding->next()) backend_.submit(*request);
  } catch (const EngineFailed& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {503, error.what(), "engine_failed"});
  } catch (const Error& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {400, error.what()});
  }
}

}  // namespace invar::server
