// A server's answers to clients who ask about the model.
#pragma once

#include <optional>

#include "serve_flags.h"

namespace invar::cli {

// The facts of the model that clients are shown; its weights are not read.
server::ModelCard card_of(const ModelOptions& options);

// The answers about the model, and the parts of its files that they need.
class Served {
 public:
  Served(const ServeFlags& flags, const ModelOptions& options, const Tokenizer& tokenizer);
  Served(const Served&) = delete;

  const server::ServedModel& model() const { return model_; }

 private:
  void open_adapters(const ServeFlags& flags, const ModelOptions& options);
  void open_chat(const ServeFlags& flags, const ModelOptions& options);

  server::ServedModel model_;
  std::optional<ChatTemplate> chat_;
  std::optional<ReceiptKey> receipt_key_;
  std::optional<server::ServedAdapters> adapters_;
  std::optional<ThoughtSeal> seal_;
};

}  // namespace invar::cli
