#include "tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

const icu::Normalizer2& normalizer_for(UnicodeForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case UnicodeForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case UnicodeForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case UnicodeForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case UnicodeForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  if (U_FAILURE(status)) fail("ICU's data cannot be loaded: {}", u_errorName(status));
  return *normalizer;
}

// Above this many characters that may change places with each other ICU gets them in order: it
// sorts by insertion, which takes the square of their number. Text that means something has a few.
constexpr size_t kLongRun = 64;

// Appends the decomposition of a run with its marks in canonical order. That is canonically (for
// the K forms compatibly) the same text, so every normal form of it is the same too.
void append_in_order(const icu::Normalizer2& decomposition, std::string_view run,
                     std::string& out) {
  std::vector<std::pair<uint8_t, UChar32>> marks;  // with their combining classes
  const auto sort_and_append = [&] {
    std::stable_sort(marks.begin(), marks.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [combining_class, mark] : marks) utf8::append(out, mark);
    marks.clear();
  };
  icu::UnicodeString decomposed;
  for (size_t at = 0; at < run.size(); at += utf8::length(run[at])) {
    const auto character = static_cast<UChar32>(utf8::decode(run, at));
    if (!decomposition.getDecomposition(character, decomposed)) decomposed.setTo(character);
    for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
      const UChar32 part = decomposed.char32At(i);
      const uint8_t combining_class = decomposition.getCombiningClass(part);
      if (combining_class == 0) sort_and_append();  // nothing crosses it
      marks.emplace_back(combining_class, part);
    }
  }
  sort_and_append();
}

// Puts long runs of characters with no boundary between them in order; linear in the text but for
// the logarithm of a run's length.
void order_long_runs(UnicodeForm form, std::string& text) {
  const icu::Normalizer2& normalizer = normalizer_for(form);
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const icu::Normalizer2& decomposition =
      normalizer_for(compatible ? UnicodeForm::kNfkd : UnicodeForm::kNfd);
  std::string out;
  size_t copied = 0, run = 0, length = 0;  // of characters that go on the run
  const auto end_run = [&](size_t end) {
    if (length > kLongRun) {
      out.append(text, copied, run - copied);
      append_in_order(decomposition, std::string_view(text).substr(run, end - run), out);
      copied = end;
    }
    length = 0;
  };
  for (size_t at = 0; at < text.size(); at += utf8::length(text[at])) {
    if (is_ascii(text[at]) ||
        normalizer.hasBoundaryBefore(static_cast<UChar32>(utf8::decode(text, at)))) {
      if (length > 0) end_run(at);
    } else if (length++ == 0) {
      run = at;
    }
  }
  end_run(text.size());
  if (copied == 0) return;
  out.append(text, copied);
  text = std::move(out);
}

void apply(UnicodeForm form, std::string& text, size_t) {
  if (std::all_of(text.begin(), text.end(), is_ascii)) return;
  order_long_runs(form, text);
  UErrorCode status = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  normalizer_for(form).normalizeUTF8(0, icu::StringPiece(text.data(), text.size()), sink, nullptr,
                                     status);
  CHECK(U_SUCCESS(status), "normalizing valid text cannot fail");
  text = std::move(out);
}

void apply(const Prepend& prepend, std::string& text, size_t) {
  if (!text.empty()) text.insert(0, prepend.prefix);
}

void apply(const Replace& replace, std::string& text, size_t most) {
  replace_all(text, replace, most);
}

void expect_at_most(size_t most, size_t found) {
  if (found > most)
    fail_usage("the tokenizer's normalizers make more than {} bytes of a text", most);
}

}  // namespace

void replace_all(std::string& text, const Replace& replace, size_t most) {
  size_t at = text.find(replace.from);
  if (at == std::string::npos) return;
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  size_t copied = 0;
  for (; at != std::string::npos; at = text.find(replace.from, copied)) {
    out.append(text, copied, at - copied);
    out += replace.to;
    copied = at + replace.from.size();
    expect_at_most(most, out.size());
  }
  out.append(text, copied);
  text = std::move(out);
}

void normalize(const std::vector<NormalizerStep>& steps, std::string& text) {
  const size_t most = 32 * text.size() + (size_t{64} << 10);
  for (const NormalizerStep& step : steps) {
    std::visit([&](const auto& s) { apply(s, text, most); }, step);
    expect_at_most(most, text.size());
  }
}

}  // namespace invar::tokenizer
