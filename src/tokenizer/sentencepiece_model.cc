#include "tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "tokenizer/string_table.h"
#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

// Longer pieces would make the search for their halves slow.
constexpr size_t kMaxPiece = 1024;

// One message of the protocol-buffer wire format, field by field.
class Message {
 public:
  Message(std::string_view bytes, const std::string& file, size_t offset = 0)
      : bytes_(bytes), file_(file), offset_(offset) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = read_varint();
    if (key >> 3 == 0 || key >> 32 != 0) broken("a field number");
    number_ = static_cast<uint32_t>(key >> 3);
    wire_type_ = static_cast<int>(key & 7);
    switch (wire_type_) {
      case 0:
        value_ = read_varint();
        break;
      case 1:
        read_bytes(8);
        break;
      case 2:
        read_bytes(read_varint());
        break;
      case 5:
        read_bytes(4);
        break;
      default:
        broken("a wire type");
    }
    return true;
  }

  uint32_t number() const { return number_; }

  // The value of the field, which must be of that kind.
  uint64_t integer() const {
    expect(0, "an integer");
    return value_;
  }
  float number32() const {
    expect(5, "a 32-bit number");
    float f;
    std::memcpy(&f, content_.data(), sizeof f);
    return f;
  }
  std::string_view string() const {
    expect(2, "a string");
    return content_;
  }
  Message message() const {
    expect(2, "a message");
    return Message(content_, file_, offset_ + (content_.data() - bytes_.data()));
  }

 private:
  [[noreturn]] void broken(const char* expected) const {
    fail("{}: byte {}: expected {}, found the message broken", file_, offset_ + at_, expected);
  }
  void expect(int wire_type, const char* what) const {
    if (wire_type_ != wire_type)
      fail("{}: byte {}: expected {} in field {}, found wire type {}", file_, offset_ + at_, what,
           number_, wire_type_);
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) break;
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    broken("a whole number");
  }
  void read_bytes(uint64_t count) {
    if (count > bytes_.size() - at_) broken("more bytes");
    content_ = bytes_.substr(at_, count);
    at_ += count;
  }

  std::string_view bytes_;
  const std::string& file_;
  size_t offset_, at_ = 0;
  uint32_t number_ = 0;
  int wire_type_ = 0;
  uint64_t value_ = 0;
  std::string_view content_;
};

// The numbers of sentencepiece_model.proto.
enum PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // unigram
  bool byte_fallback = false, whitespace_as_suffix = false;
  int32_t bos_id = 1, eos_id = 2;
  bool charsmap = false, add_dummy_prefix = true, remove_extra_whitespaces = true,
       escape_whitespaces = true;
  bool denormalizes = false;
};

Piece read_piece(Message message) {
  Piece piece;
  while (message.next()) switch (message.number()) {
      case 1:
        piece.text = message.string();
        break;
      case 2:
        piece.score = message.number32();
        break;
      case 3:
        piece.type = message.integer();
        break;
    }
  return piece;
}

void read_trainer_spec(Message message, Model& model) {
  while (message.next()) switch (message.number()) {
      case 3:
        model.model_type = message.integer();
        break;
      case 24:
        model.whitespace_as_suffix = message.integer() != 0;
        break;
      case 35:
        model.byte_fallback = message.integer() != 0;
        break;
      case 41:
        model.bos_id = static_cast<int32_t>(message.integer());
        break;
      case 42:
        model.eos_id = static_cast<int32_t>(message.integer());
        break;
    }
}

void read_normalizer_spec(Message message, Model& model) {
  while (message.next()) switch (message.number()) {
      case 2:
        model.charsmap = !message.string().empty();
        break;
      case 3:
        model.add_dummy_prefix = message.integer() != 0;
        break;
      case 4:
        model.remove_extra_whitespaces = message.integer() != 0;
        break;
      case 5:
        model.escape_whitespaces = message.integer() != 0;
        break;
    }
}

Model read_model(Message message) {
  Model model;
  while (message.next()) switch (message.number()) {
      case 1:
        model.pieces.push_back(read_piece(message.message()));
        break;
      case 2:
        read_trainer_spec(message.message(), model);
        break;
      case 3:
        read_normalizer_spec(message.message(), model);
        break;
      case 5: {
        Model other;
        read_normalizer_spec(message.message(), other);
        model.denormalizes = other.charsmap;
        break;
      }
    }
  return model;
}

void refuse_unsupported(const Model& model, const std::string& file) {
  static constexpr const char* kTypes[] = {"?", "UNIGRAM", "BPE", "WORD", "CHAR"};
  if (model.model_type != 2)
    fail("{}: trainer_spec.model_type: {} is not supported", file,
         kTypes[model.model_type < 5 ? model.model_type : 0]);
  if (model.whitespace_as_suffix)
    fail("{}: trainer_spec.treat_whitespace_as_suffix: not supported", file);
  if (model.charsmap) fail("{}: normalizer_spec.precompiled_charsmap: not supported", file);
  if (model.denormalizes) fail("{}: denormalizer_spec.precompiled_charsmap: not supported", file);
  if (model.remove_extra_whitespaces)
    fail("{}: normalizer_spec.remove_extra_whitespaces: not supported", file);
  if (!model.escape_whitespaces)
    fail("{}: normalizer_spec.escape_whitespaces: false is not supported", file);
  if (model.pieces.empty()) fail("{}: expected pieces, found none", file);
  if (model.pieces.size() > static_cast<size_t>(kMaxVocabulary))
    fail("{}: expected at most {} pieces, found {}", file, kMaxVocabulary, model.pieces.size());
}

// Each way to put a piece together from two others is a merge; better pieces come first, equal ones
// together.
std::vector<Merge> merges_of(const std::vector<Piece>& pieces, const std::string& file) {
  std::vector<float> scores;
  StringTable ids(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type != kNormal) continue;
    scores.push_back(pieces[i].score);
    if (!ids.insert(pieces[i].text, static_cast<int32_t>(i)))
      fail("{}: pieces[{}]: \"{}\" stands twice", file, i, pieces[i].text);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<Merge> merges;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type != kNormal) continue;
    const std::string_view text = pieces[i].text;
    const auto rank =
        std::lower_bound(scores.begin(), scores.end(), pieces[i].score, std::greater<>()) -
        scores.begin();
    for (size_t cut = utf8::length(text[0]); cut < text.size(); cut += utf8::length(text[cut])) {
      const int32_t left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left >= 0 && right >= 0)
        merges.push_back({left, right, static_cast<int32_t>(i), static_cast<uint32_t>(rank)});
    }
    // The library merges characters that are no pieces too; then the table of merges would not be
    // all.
    for (size_t at = 0; at < text.size(); at += utf8::length(text[at]))
      if (ids.find(text.substr(at, utf8::length(text[at]))) < 0)
        fail(
            "{}: pieces[{}]: \"{}\" has a character that is no piece itself, which is not "
            "supported",
            file, i, text);
  }
  return merges;
}

void check(const Piece& piece, size_t i, const std::string& file) {
  if (piece.text.empty() || piece.text.size() > kMaxPiece)
    fail("{}: pieces[{}]: expected 1 to {} bytes, found {}", file, i, kMaxPiece, piece.text.size());
  if (utf8::find_invalid(piece.text) != std::string::npos)
    fail("{}: pieces[{}]: expected UTF-8, found other bytes", file, i);
  if (!(piece.score == piece.score)) fail("{}: pieces[{}]: the score is not a number", file, i);
  if (piece.type < kNormal || piece.type > kByte || piece.type == kUnused)
    fail("{}: pieces[{}]: type {} is not supported", file, i, piece.type);
}

}  // namespace

Description read_sentencepiece_model(std::string_view bytes, const std::string& file) {
  const Model model = read_model(Message(bytes, file));
  refuse_unsupported(model, file);
  Description description;
  description.from_sentencepiece = true;
  description.byte_fallback = model.byte_fallback;
  description.fuse_unk = true;
  size_t byte_pieces = 0;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    check(piece, i, file);
    description.tokens.push_back(piece.text);
    const auto id = static_cast<int32_t>(i);
    byte_pieces += piece.type == kByte;
    if (piece.type == kUnknown) description.unk_id = id;
    if (piece.type == kUnknown || piece.type == kControl || piece.type == kUserDefined) {
      AddedToken token;
      token.id = id;
      token.content = piece.text;
      token.special = piece.type != kUserDefined;
      description.added_tokens.push_back(std::move(token));
    }
  }
  if (model.byte_fallback != (byte_pieces == 256))
    fail("{}: expected {} pieces for bytes, found {}", file, model.byte_fallback ? 256 : 0,
         byte_pieces);
  if (description.unk_id < 0) fail("{}: expected a piece of the type UNKNOWN, found none", file);
  description.merges = merges_of(model.pieces, file);
  const auto control = [&](int32_t id) {
    const bool known = id >= 0 && static_cast<size_t>(id) < model.pieces.size() &&
                       model.pieces[id].type == kControl;
    return known ? id : -1;
  };
  description.bos_id = control(model.bos_id);
  description.eos_id = control(model.eos_id);
  if (description.bos_id >= 0) description.prefix = {description.bos_id};
  description.decoder.replace = {{kSpaceMark, " "}};
  description.decoder.byte_fallback = model.byte_fallback;
  set_space_prefix(model.add_dummy_prefix ? SpacePrefix::kEverySection : SpacePrefix::kNone,
                   description);
  return description;
}

void set_space_prefix(SpacePrefix prefix, Description& description) {
  description.normalizer.clear();
  description.pre_tokenizer.clear();
  if (prefix == SpacePrefix::kFirstSection) {
    description.pre_tokenizer.emplace_back(Metaspace{kSpaceMark, Metaspace::Prepend::kFirst});
  } else {
    if (prefix == SpacePrefix::kEverySection) description.normalizer.push_back(Prepend{kSpaceMark});
    description.normalizer.push_back(Replace{" ", kSpaceMark});
  }
  description.decoder.leading_spaces = prefix == SpacePrefix::kNone ? 0 : 1;
}

}  // namespace invar::tokenizer
