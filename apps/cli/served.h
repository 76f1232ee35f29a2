// What a server tells its clients of the model.
#pragma once

#include <optional>

#include "serve_flags.h"

namespace invar::cli {

// What clients are told of the model, and what of its files that needs.
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
