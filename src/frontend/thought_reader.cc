#include <algorithm>

#include "frontend/thoughts.h"

namespace invar {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr size_t kNowhere = std::string_view::npos;

// The text of thoughts, without the newlines around them.
class Said {
 public:
  void add(std::string_view text, std::string& out) {
    if (!has_begun_) text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    if (text.empty()) return;
    const size_t end = text.find_last_not_of("\r\n");
    if (end != kNowhere) {
      out += newlines_;
      newlines_.clear();
      out += text.substr(0, end + 1);
      has_begun_ = true;
    }
    newlines_ += text.substr(end == kNowhere ? 0 : end + 1);
  }
  // Another thought begins: on a line of its own.
  void begin_another() {
    if (std::exchange(has_begun_, false)) separator_ = true;
    newlines_ = separator_ ? "\n" : "";
  }
  bool has_begun() const { return has_begun_; }

 private:
  bool has_begun_ = false, separator_ = false;
  std::string newlines_;
};

// A thought between two marks, at the beginning of the answer.
class TagReader final : public ThoughtReader {
 public:
  explicit TagReader(const ThoughtView& view)
      : style_(style_of(view.format)), place_(view.begun ? Place::within : Place::before) {}

  void push(std::string_view piece, std::string& thought, std::string& text) override {
    held_ += piece;
    if (place_ == Place::before) read_before(text);
    if (place_ == Place::within) read_within(thought);
    if (place_ == Place::behind) read_behind(text);
  }

  void finish(std::string& thought, std::string& text) override {
    place_ == Place::within ? said_.add(held_, thought) : void(text += held_);
    held_.clear();
  }

  bool is_within() const override { return place_ == Place::within; }

 private:
  enum class Place { before, within, behind };

  // Where the opening mark ends at the beginning of what is held; 0: it may come yet; kNowhere: it
  // does not.
  size_t end_of_opening() {
    gaps_ = std::min(held_.find_first_not_of(kWhiteSpace, gaps_), held_.size());
    const std::string_view rest = std::string_view(held_).substr(gaps_);
    if (rest.starts_with(style_.open)) return gaps_ + style_.open.size();
    return style_.open.starts_with(rest) ? 0 : kNowhere;
  }

  void read_before(std::string& text) {
    const size_t end = end_of_opening();
    if (end == 0) return;
    place_ = end == kNowhere ? Place::behind : Place::within;
    may_open_ = false;
    if (end == kNowhere)
      text += std::exchange(held_, {});
    else
      held_.erase(0, end);
  }

  // A model may write the opening mark once more behind the prompt's.
  void read_within(std::string& thought) {
    if (may_open_) {
      const size_t end = end_of_opening();
      if (end == 0) return;
      may_open_ = false;
      if (end != kNowhere) held_.erase(0, end);
    }
    const size_t close = held_.find(style_.close);
    const size_t shown =
        close == kNowhere ? held_.size() - beginning_of(style_.close, held_) : close;
    said_.add(std::string_view(held_).substr(0, shown), thought);
    held_.erase(0, close == kNowhere ? shown : close + style_.close.size());
    if (close == kNowhere) return;
    place_ = Place::behind;
    drops_newlines_ = true;
  }

  void read_behind(std::string& text) {
    if (drops_newlines_) {
      held_.erase(0, std::min(held_.find_first_not_of("\r\n"), held_.size()));
      drops_newlines_ = held_.empty();
    }
    text += std::exchange(held_, {});
  }

  const ThoughtStyle& style_;
  Place place_;
  bool may_open_ = true, drops_newlines_ = false;
  std::string held_;
  size_t gaps_ = 0;  // white space at its beginning, before an opening mark
  Said said_;
};

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kBody = "<|message|>";
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};

// gpt-oss: messages, each with a header that says its channel and to whom it goes.
class ChannelReader final : public ThoughtReader {
 public:
  void push(std::string_view piece, std::string& thought, std::string& text) override {
    held_ += piece;
    while (place_ == Place::header ? read_header(text) : read_message(thought, text)) {
    }
  }

  void finish(std::string& thought, std::string& text) override {
    if (place_ != Place::header)
      say(held_, thought, text);
    else if (!may_be_header())
      text += held_;
    held_.clear();
  }

  bool is_within() const override { return place_ == Place::thought; }

 private:
  enum class Place { header, thought, text, call };

  bool may_be_header() const {
    const std::string_view text = held_;
    for (const std::string_view mark : {kStart, kChannel, std::string_view(" to=")})
      if (text.starts_with(mark) || mark.starts_with(text)) return true;
    return false;
  }

  // False: more is needed.
  bool read_header(std::string& text) {
    if (held_.empty()) return false;
    if (!may_be_header()) {
      place_ = Place::text;
      return true;
    }
    const size_t end = held_.find(kBody, looked_);
    looked_ = end == kNowhere ? held_.size() - beginning_of(kBody, held_) : 0;
    if (end == kNowhere) return false;
    const std::string header = held_.substr(0, end);
    held_.erase(0, end + kBody.size());
    const auto word_behind = [&](std::string_view mark) {
      const size_t at = header.find(mark);
      const size_t begin = at == kNowhere ? header.size() : at + mark.size();
      return header.substr(begin, header.find_first_of(" <", begin) - begin);
    };
    const std::string recipient = word_behind(" to=");
    if (!recipient.empty()) {
      place_ = Place::call;
      text += "<|channel|>commentary to=" + recipient + "<|message|>";
    } else if (word_behind(kChannel) == "analysis") {
      place_ = Place::thought;
      said_.begin_another();
    } else {
      place_ = Place::text;
    }
    return true;
  }

  bool read_message(std::string& thought, std::string& text) {
    size_t end = kNowhere, size = 0, beginning = 0;
    for (const std::string_view mark : kMessageEnds) {
      const size_t at = held_.find(mark);
      if (at < end) end = at, size = mark == kStart || mark == kChannel ? 0 : mark.size();
      beginning = std::max(beginning, beginning_of(mark, held_));
    }
    const size_t shown = end == kNowhere ? held_.size() - beginning : end;
    say(std::string_view(held_).substr(0, shown), thought, text);
    held_.erase(0, shown + size);
    if (end == kNowhere) return false;
    if (place_ == Place::call) text += "<|call|>";
    place_ = Place::header;
    return true;
  }

  void say(std::string_view words, std::string& thought, std::string& text) {
    place_ == Place::thought ? said_.add(words, thought) : void(text += words);
  }

  Place place_ = Place::header;
  std::string held_;
  size_t looked_ = 0;  // bytes of it in which a header does not end
  Said said_;
};

}  // namespace

size_t beginning_of(std::string_view mark, std::string_view text) {
  for (size_t size = std::min(mark.size() - 1, text.size()); size > 0; --size)
    if (text.ends_with(mark.substr(0, size))) return size;
  return 0;
}

std::unique_ptr<ThoughtReader> make_thought_reader(const ThoughtView& view) {
  if (view.format == ThoughtFormat::none) return nullptr;
  if (view.format == ThoughtFormat::gpt_oss) return std::make_unique<ChannelReader>();
  return std::make_unique<TagReader>(view);
}

}  // namespace invar
