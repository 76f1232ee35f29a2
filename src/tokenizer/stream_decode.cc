#include <algorithm>
#include <cstring>

#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace invar {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer),
      skip_special_(options.skip_special),
      bare_token_(!options.continuation && tokenizer.parts_->bare_first_token),
      spaces_to_drop_(options.continuation ? 0 : tokenizer.parts_->leading_spaces) {}

void StreamDecoder::push(int32_t id, std::string& out) {
  if (skip_special_ && tokenizer_->is_special(id)) return;
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return;
  if (bare_token_) {
    bare_token_ = false;
    std::string bare(bytes);
    std::erase(bare, ' ');
    append(bare, out);
    return;
  }
  for (; spaces_to_drop_ > 0 && bytes.starts_with(' '); --spaces_to_drop_) bytes.remove_prefix(1);
  if (!bytes.empty()) spaces_to_drop_ = 0;
  append(bytes, out);
}

// Only the front of `bytes` can complete what waits, and only their end can begin something new.
void StreamDecoder::append(std::string_view bytes, std::string& out) {
  while (waiting_size_ > 0 && !bytes.empty()) {
    waiting_[waiting_size_] = bytes[0];
    const auto [kind, length] = utf8::front({waiting_, static_cast<size_t>(waiting_size_) + 1});
    if (kind == utf8::Front::kBroken) {  // without the new byte, which may begin another character
      out += utf8::kReplacement;
      waiting_size_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    ++waiting_size_;
    if (kind == utf8::Front::kCharacter) {
      out.append(waiting_, waiting_size_);
      waiting_size_ = 0;
    }
  }
  while (!bytes.empty()) {
    const size_t invalid = utf8::find_invalid(bytes);
    out += bytes.substr(0, invalid);
    if (invalid == std::string_view::npos) return;
    bytes.remove_prefix(invalid);
    const auto [kind, length] = utf8::front(bytes);
    if (kind == utf8::Front::kCutOff) {
      std::memcpy(waiting_, bytes.data(), length);
      waiting_size_ = length;
      return;
    }
    out += utf8::kReplacement;
    bytes.remove_prefix(length);
  }
}

void StreamDecoder::finish(std::string& out) {
  if (waiting_size_ > 0) out += utf8::kReplacement;
  waiting_size_ = 0;
}

}  // namespace invar
