// /v1/files and /v1/batches, as OpenAI has them: requests in a file, a line each, and their answers
// in another.
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "frontend/body_fields.h"
#include "multipart.h"

namespace invar::server {

namespace {

constexpr int64_t kMostOfOwner = int64_t{4} << 30;  // bytes of files and batches
constexpr size_t kMostLines = 50'000, kMostBatches = 16, kMostErrors = 20, kMostListed = 100;
constexpr size_t kMostNameBytes = 512, kMostMetadataBytes = 16 << 10;
constexpr std::string_view kEndpoints[] = {"/v1/chat/completions", "/v1/completions",
                                           "/v1/embeddings", "/v1/responses"};

// The text between the last two slashes, or behind the last one.
std::string id_in(const std::string& path, bool has_word) {
  const size_t end = has_word ? path.rfind('/') : path.size();
  const size_t begin = path.rfind('/', end - 1) + 1;
  return path.substr(begin, end - begin);
}

json::Value or_null(const std::string& text) {
  return text.empty() ? json::Value() : json::Value(text);
}

json::Value file_object(const StoredFile& file) {
  return json::Object{{"id", file.id},         {"object", "file"},
                      {"bytes", file.bytes},   {"created_at", file.created},
                      {"filename", file.name}, {"purpose", file.purpose},
                      {"status", "processed"}};
}

json::Value batch_object(const Batch& batch) {
  const auto kept = [](const std::string& text) {
    return text.empty() ? json::Value() : json::parse(text, "a batch");
  };
  const auto when = [&](Batch::Status status) {
    return batch.status == status ? json::Value(batch.ended) : json::Value();
  };
  return json::Object{{"id", batch.id},
                      {"object", "batch"},
                      {"endpoint", batch.endpoint},
                      {"errors", kept(batch.errors)},
                      {"input_file_id", batch.input_file},
                      {"completion_window", batch.window},
                      {"status", name_of(batch.status)},
                      {"output_file_id", or_null(batch.output_file)},
                      {"error_file_id", or_null(batch.error_file)},
                      {"created_at", batch.created},
                      {"in_progress_at", batch.created},
                      {"expires_at", nullptr},
                      {"completed_at", when(Batch::Status::completed)},
                      {"failed_at", when(Batch::Status::failed)},
                      {"cancelled_at", when(Batch::Status::cancelled)},
                      {"request_counts", json::Object{{"total", batch.lines},
                                                      {"completed", batch.completed},
                                                      {"failed", batch.failed}}},
                      {"metadata", kept(batch.metadata)}};
}

json::Value list_object(json::Array data) {
  const json::Value first = data.empty() ? json::Value() : *data.front().find("id");
  const json::Value last = data.empty() ? json::Value() : *data.back().find("id");
  return json::Object{{"object", "list"},
                      {"data", std::move(data)},
                      {"first_id", first},
                      {"last_id", last},
                      {"has_more", false}};
}

// A line of the file as a request; throws Error for what is none.
BatchLine line_of(std::string_view text, int64_t number, const std::string& endpoint,
                  std::set<std::string>& ids) {
  const json::Value line = json::parse(text, "the line");
  if (!line.is_object()) fail_usage("expected an object, found {}", line.type_name());
  const BodyFields fields(line);
  const json::Value *id = fields.find("custom_id"), *body = fields.find("body"),
                    *url = fields.find("url"), *method = fields.find("method");
  if (!id) fail_usage("expected \"custom_id\" in the line");
  const std::string& name = text_of(*id, "custom_id", kMostNameBytes);
  if (name.empty() || !ids.insert(name).second)
    fail_usage("expected a custom_id that no other line has, found {}", json::quoted(name));
  if (method && *method != json::Value("POST"))
    fail_usage("expected method as POST, found {}", json::excerpt(*method));
  if (!url || *url != json::Value(endpoint))
    fail_usage("expected url as the batch's endpoint {}, found {}", endpoint,
               url ? json::excerpt(*url) : "none");
  if (!body || !body->is_object()) fail_usage("expected \"body\" as an object in the line");
  for (const char* waits : {"stream", "background"})
    if (const json::Value* found = body->find(waits); found && *found == json::Value(true))
      fail_usage("expected no \"{}\" in a batch, found true", waits);
  return {number, name, json::dump(*body)};
}

json::Value error_of(int64_t number, const std::string& sentence) {
  return json::Object{
      {"code", "invalid_line"}, {"line", number}, {"message", sentence}, {"param", nullptr}};
}

// The requests of a file; `errors` becomes a sentence for each line that is none.
std::vector<BatchLine> lines_of(std::string_view content, const std::string& endpoint,
                                json::Array& errors) {
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  for (int64_t number = 1; !content.empty() && errors.size() < kMostErrors; ++number) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view text = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    if (lines.size() == kMostLines) {
      errors.push_back(error_of(number, fmt::format("expected at most {} lines", kMostLines)));
      break;
    }
    try {
      lines.push_back(line_of(text, number, endpoint, ids));
    } catch (const Error& error) {
      errors.push_back(error_of(number, error.what()));
    }
  }
  if (lines.empty() && errors.empty()) errors.push_back(error_of(1, "expected lines, found none"));
  return lines;
}

// The bytes of a file that a batch has made, piece by piece.
class ContentSource final : public BodySource {
 public:
  ContentSource(const BatchStore& store, std::string id) : store_(store), id_(std::move(id)) {}
  bool pull(std::string& out) override {
    constexpr size_t kPiece = 256 << 10;
    out += store_.content(id_, after_, kPiece);
    return after_ >= 0;
  }
  bool is_ready() const override { return true; }

 private:
  const BatchStore& store_;
  const std::string id_;
  int64_t after_ = 0;
};

}  // namespace

BatchStore& Server::store() const {
  if (!store_)
    throw ApiError{400, "files and batches need a server with a journal (--journal)",
                   "unsupported_parameter"};
  return *store_;
}

StoredFile Server::own_file(const HttpRequest& request, const std::string& id) const {
  auto file = store().find_file(id);
  if (!file || file->owner != options_.keys.owner(request))
    throw ApiError{404, fmt::format("there is no file {}", json::quoted(id)), "not_found",
                   "file_id"};
  return *std::move(file);
}

Batch Server::own_batch(const HttpRequest& request, const std::string& id) const {
  auto batch = store().find_batch(id);
  if (!batch || batch->owner != options_.keys.owner(request))
    throw ApiError{404, fmt::format("there is no batch {}", json::quoted(id)), "not_found",
                   "batch_id"};
  return *std::move(batch);
}

void Server::open_batches() {
  store_ = std::make_unique<BatchStore>(options_.batch_file, kMostOfOwner);
  batches_ = std::make_unique<Batches>(
      *store_, Batches::Threads{
                   .ask = [this](std::shared_ptr<Exchange> exchange) { ask_line(exchange); },
                   .pool =
                       [this](std::function<void()> task) {
                         pool_.post({FairPool::Kind::slow, FairPool::kServer}, std::move(task));
                       },
                   .serving = [this](std::function<void()> task) { http_.post(std::move(task)); },
                   .later =
                       [this](std::function<void()> task) {
                         return http_.at(Clock::now() + std::chrono::seconds(1), std::move(task));
                       }});
}

void Server::ask_line(const std::shared_ptr<Exchange>& exchange) {
  try {
    exchange->request.path == "/v1/embeddings" ? ask(exchange) : answer(exchange);
  } catch (const ApiError& error) {
    refuse(*exchange, error);
  }
}

// POST /v1/files: a form with a file and its purpose.
void Server::add_file(std::shared_ptr<Exchange> exchange) {
  constexpr size_t kCost = 3;  // bytes of memory for a byte of the body
  const HttpRequest& request = exchange->request;
  store();
  const auto slots = std::make_shared<HeldSlots>(slots_, options_.keys.owner(request));
  hold_memory(*slots, kCost * request.body.size());
  exchange->slots = slots;
  reply_later(reading(request), exchange, [this, exchange]() -> json::Value {
    const HttpRequest& request = exchange->request;
    const std::string* type = request.header("content-type");
    StoredFile file{.id = random_id("file-"),
                    .owner = options_.keys.owner(request),
                    .created = static_cast<int64_t>(std::time(nullptr))};
    std::optional<std::string_view> content;
    for (const FormPart& part : form_parts(type ? *type : "", request.body)) {
      if (part.name == "purpose") file.purpose = part.content;
      if (part.name != "file") continue;
      content = part.content;
      file.name = part.file_name.substr(0, kMostNameBytes);
    }
    if (!content) throw ApiError{400, "expected \"file\" in the form, found none", "", "file"};
    if (file.purpose != "batch")
      throw ApiError{400,
                     fmt::format("expected purpose as batch, found {}", json::quoted(file.purpose)),
                     "invalid_value", "purpose"};
    file.bytes = std::ssize(*content);
    try {
      store().add_file(file, *content);
    } catch (const StoreFull& error) {
      throw ApiError{413, error.what(), "storage_full"};
    }
    return file_object(file);
  });
}

void Server::list_files(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange]() -> json::Value {
    json::Array data;
    for (const StoredFile& file : store().files(options_.keys.owner(exchange->request)))
      data.push_back(file_object(file));
    return list_object(std::move(data));
  });
}

void Server::show_file(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange] {
    return file_object(own_file(exchange->request, id_in(exchange->request.path, false)));
  });
}

void Server::file_content(std::shared_ptr<Exchange> exchange) {
  store();
  offer(slow(exchange->request), [this, exchange] {
    guarded(exchange, [&] {
      const StoredFile file = own_file(exchange->request, id_in(exchange->request.path, true));
      const auto reply = std::make_shared<HttpReply>(HttpReply{.type = "application/octet-stream"});
      const bool is_made = file.purpose != "batch";
      int64_t after = 0;
      if (!is_made) reply->body = store().content(file.id, after, SIZE_MAX);
      http_.post([this, exchange, reply, is_made, id = file.id] {
        if (!is_made) return exchange->reply(std::move(*reply));
        exchange->stream(std::move(*reply), std::make_shared<ContentSource>(*store_, id));
      });
    });
  });
}

void Server::remove_file(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange]() -> json::Value {
    const StoredFile file = own_file(exchange->request, id_in(exchange->request.path, false));
    store().remove_file(file.id);
    return json::Object{{"id", file.id}, {"object", "file"}, {"deleted", true}};
  });
}

// The batch that a body of POST /v1/batches asks for, without its lines.
Batch Server::new_batch(const HttpRequest& request) const {
  const json::Value body = json_body(request);
  const BodyFields fields(body);
  const json::Value *input = fields.find("input_file_id"), *endpoint = fields.find("endpoint");
  if (!input) fail_usage("expected \"input_file_id\" in the body of the request");
  if (!endpoint) fail_usage("expected \"endpoint\" in the body of the request");
  Batch batch{.id = random_id("batch_"),
              .owner = options_.keys.owner(request),
              .endpoint = text_of(*endpoint, "endpoint"),
              .input_file = text_of(*input, "input_file_id"),
              .window = "24h",
              .created = static_cast<int64_t>(std::time(nullptr))};
  if (std::ranges::find(kEndpoints, batch.endpoint) == std::end(kEndpoints))
    fail_usage("expected endpoint as one of {}, found {}", fmt::join(kEndpoints, ", "),
               json::quoted(batch.endpoint));
  if (const json::Value* window = fields.find("completion_window"))
    batch.window = text_of(*window, "completion_window", kMostNameBytes);
  if (const json::Value* metadata = fields.find("metadata")) {
    batch.metadata = json::dump(*metadata);
    if (!metadata->is_object() || batch.metadata.size() > kMostMetadataBytes)
      fail_usage("expected metadata as an object of at most {} bytes, found {}", kMostMetadataBytes,
                 json::excerpt(*metadata));
  }
  return batch;
}

void Server::add_batch(std::shared_ptr<Exchange> exchange) {
  store();
  const auto begin = [this, exchange]() -> json::Value {
    Batch batch = new_batch(exchange->request);
    own_file(exchange->request, batch.input_file);
    const auto unfinished = store().unfinished();
    if (std::ranges::count(unfinished, batch.owner, &Batch::owner) >=
        static_cast<int64_t>(kMostBatches))
      throw ApiError{429,
                     fmt::format("expected at most {} unfinished batches of one key", kMostBatches),
                     "queue_full"};
    int64_t after = 0;
    const std::string content = store().content(batch.input_file, after, SIZE_MAX);
    json::Array errors;
    std::vector<BatchLine> lines = lines_of(content, batch.endpoint, errors);
    if (!errors.empty()) {
      batch.status = Batch::Status::failed;
      batch.ended = batch.created;
      batch.errors = json::dump(json::Object{{"object", "list"}, {"data", std::move(errors)}});
      lines.clear();
    }
    try {
      store().add_batch(batch, lines);
    } catch (const StoreFull& error) {
      throw ApiError{413, error.what(), "storage_full"};
    }
    batch.lines = std::ssize(lines);
    if (!batch.is_over()) http_.post([this, batch] { batches_->begin(batch); });
    return batch_object(batch);
  };
  // As large as a file may be: one at a time.
  offer({FairPool::Kind::slow, options_.keys.owner(exchange->request), FairPool::kBig + 1},
        [this, exchange, begin] {
          guarded(exchange, [&] {
            const auto reply = std::make_shared<HttpReply>(HttpReply{.body = json::dump(begin())});
            http_.post([exchange, reply] { exchange->reply(std::move(*reply)); });
          });
          trim_memory();
        });
}

void Server::list_batches(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange]() -> json::Value {
    json::Array data;
    for (const Batch& batch : store().batches(options_.keys.owner(exchange->request), kMostListed))
      data.push_back(batch_object(batch));
    return list_object(std::move(data));
  });
}

void Server::show_batch(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange] {
    return batch_object(own_batch(exchange->request, id_in(exchange->request.path, false)));
  });
}

// Lines that have been answered stay in its file.
void Server::cancel_batch(std::shared_ptr<Exchange> exchange) {
  store();
  reply_later(reading(exchange->request), exchange, [this, exchange]() -> json::Value {
    Batch batch = own_batch(exchange->request, id_in(exchange->request.path, true));
    if (batch.is_over())
      throw ApiError{
          409,
          fmt::format("expected a batch that goes on, found one that is {}", name_of(batch.status)),
          "batch_over", "batch_id"};
    batch.status = Batch::Status::cancelling;
    store().set_status(batch.id, batch.status);
    http_.post([this, id = batch.id] { batches_->cancel(id); });
    return batch_object(batch);
  });
}

}  // namespace invar::server
