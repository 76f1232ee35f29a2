// POST /v1/embeddings.
#include "embedding.h"

#include <openssl/evp.h>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "engine/pooled_vector.h"

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

json::Value body_of(Embedding& embedding, const std::string& model,
                    const std::string& fingerprint) {
  json::Array data;
  int64_t tokens = 0;
  for (size_t i = 0; i < embedding.requests().size(); ++i) {
    tokens += std::ssize(embedding.requests()[i].prompt);
    const auto vector =
        shown_vector(embedding.vectors()[i], embedding.form.dimensions, embedding.form.normalize);
    data.push_back(json::Object{{"object", "embedding"},
                                {"index", static_cast<int64_t>(i)},
                                {"embedding", embedding_value(vector, embedding.form.base64)}});
  }
  return json::Object{{"object", "list"},
                      {"data", std::move(data)},
                      {"model", model},
                      {"system_fingerprint", fingerprint},
                      {"usage", json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
}

}  // namespace

void Embedding::on_vector(size_t index, std::vector<float> numbers) {
  if (over_) return;
  vectors_[index] = std::move(numbers);
  if (++there_ < vectors_.size()) return;
  over_ = true;
  full();
}

void Embedding::fail(const std::string& sentence) {
  if (over_) return;
  over_ = true;
  failed(sentence);
}

void Server::embeddings(std::shared_ptr<Exchange> exchange) {
  const auto slots = std::make_shared<HeldSlots>(slots_, options_.keys.owner(exchange->request));
  if (!slots->grow_to(1))  // all its texts together, which the body bounds
    throw ApiError{
        429, fmt::format("{} answers are being made or wait: more are refused", slots_.taken()),
        "queue_full"};
  with_weights([=, this](const WeightsLease& lease) {
    worker_for(exchange->request).post([=, this] {
      guarded(exchange, [&] {
        const json::Value body = parse_body(exchange->request.body);
        std::vector<Request> requests;
        for (auto& text : admission_.embedded(body))
          requests.push_back({.prompt = std::move(text), .hash_logits = false, .pooled = true});
        const json::Value* format = body.find("encoding_format");
        const EmbeddingFormat form{.base64 = format && *format == json::Value("base64"),
                                   .dimensions = admission_.dimensions(body),
                                   .normalize = model_.normalizes_embeddings};
        embed(std::make_shared<Embedding>(std::move(requests), form, exchange, slots, lease));
      });
    });
  });
}

// On the worker: the texts are computed from now on, and the body is made on the worker again.
void Server::embed(const std::shared_ptr<Embedding>& embedding) {
  embedding->full = [this, fingerprint = admission_.fingerprint(),
                     weak = std::weak_ptr(embedding)] {
    worker_.post([=, this, embedding = weak.lock()] {
      guarded(embedding->exchange, [&] {
        HttpReply reply{.body =
                            json::dump(body_of(*embedding, first_of(model_.names), fingerprint))};
        http_.post([embedding, reply] { embedding->exchange->reply(reply); });
      });
    });
  };
  embedding->failed = [this, weak = std::weak_ptr(embedding)](const std::string& sentence) {
    refuse(*weak.lock()->exchange, {500, "the embedding failed: " + sentence});
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
  try {
    for (const Request& request : embedding->requests()) backend_.submit(request);
  } catch (const EngineFailed& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {503, error.what(), "engine_failed"});
  } catch (const Error& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {400, error.what()});
  }
}

}  // namespace invar::server
