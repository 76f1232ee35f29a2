#include "tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/error.h"

namespace invar::tokenizer {

namespace {

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

void apply(UnicodeForm form, std::string& text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return;
  UErrorCode status = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  normalizer_for(form).normalizeUTF8(0, icu::StringPiece(text.data(), text.size()), sink, nullptr,
                                     status);
  CHECK(U_SUCCESS(status), "normalizing valid text cannot fail");
  text = std::move(out);
}

void apply(const Prepend& prepend, std::string& text) {
  if (!text.empty()) text.insert(0, prepend.prefix);
}

void apply(const Replace& replace, std::string& text) {
  replace_all(text, replace);
}

}  // namespace

void replace_all(std::string& text, const Replace& replace) {
  size_t at = text.find(replace.from);
  if (at == std::string::npos) return;
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  size_t copied = 0;
  for (; at != std::string::npos; at = text.find(replace.from, copied)) {
    out.append(text, copied, at - copied);
    out += replace.to;
    copied = at + replace.from.size();
  }
  out.append(text, copied);
  text = std::move(out);
}

void normalize(const std::vector<NormalizerStep>& steps, std::string& text) {
  for (const NormalizerStep& step : steps) std::visit([&](const auto& s) { apply(s, text); }, step);
}

}  // namespace invar::tokenizer
