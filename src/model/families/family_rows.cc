#include <algorithm>
#include <array>

#include "base/check.h"
#include "model/families/family.h"

namespace invar {

extern const Family kLlama, kMistral, kQwen2, kQwen3;
extern const Family kSmolLm3, kSeedOss, kInternLm3, kHunyuan, kMinistral, kMinistral3;
extern const Family kGranite, kOlmo2, kOlmo3, kExaone4, kGlm4, kPhi3;
extern const Family kGemma2, kGemma3, kGemma4, kFalcon;
extern const Family kQwen2Moe, kQwen3Moe, kMixtral, kOlmoe, kGlm4Moe, kGraniteMoe;
extern const Family kDeepseekV2, kDeepseekV3, kGptOss;
extern const Family kQwen3Next, kQwen35, kQwen35Moe;
extern const Family kLfm2, kLfm2Moe, kGraniteHybrid, kNemotronH, kKimiLinear, kOlmoHybrid;
extern const Family kMiniMaxM2, kHunyuan3, kGlm4MoeLite, kKimiK2, kQwen3VlMoe, kMistral4;
extern const Family kLlama4, kMiMoV2, kFalconH1, kDeepseekV32, kGlmMoeDsa;

namespace {

constexpr std::array kFamilies = {
    &kLlama,      &kMistral,  &kQwen2,         &kQwen3,      &kSmolLm3,     &kSeedOss,
    &kInternLm3,  &kHunyuan,  &kMinistral,     &kMinistral3, &kGranite,     &kOlmo2,
    &kOlmo3,      &kExaone4,  &kGlm4,          &kPhi3,       &kGemma2,      &kGemma3,
    &kFalcon,     &kQwen2Moe, &kQwen3Moe,      &kMixtral,    &kOlmoe,       &kDeepseekV2,
    &kDeepseekV3, &kGlm4Moe,  &kGraniteMoe,    &kQwen3Next,  &kQwen35,      &kQwen35Moe,
    &kLfm2,       &kLfm2Moe,  &kGraniteHybrid, &kNemotronH,  &kKimiLinear,  &kOlmoHybrid,
    &kMiniMaxM2,  &kHunyuan3, &kGlm4MoeLite,   &kKimiK2,     &kQwen3VlMoe,  &kMistral4,
    &kLlama4,     &kMiMoV2,   &kFalconH1,      &kGemma4,     &kDeepseekV32, &kGlmMoeDsa,
    &kGptOss};

}  // namespace

std::span<const Family* const> all_families() {
  return kFamilies;
}

const Family* find_family(std::string_view Family::*field, std::string_view value) {
  for (const Family* family : kFamilies)
    if (family->*field == value) return family;
  return nullptr;
}

const Family& family_of(const DecoderSpec& spec) {
  const Family* family = find_family(&Family::name, spec.family);
  CHECK(family, "a spec of no family");
  return *family;
}

std::function<int64_t(int64_t)> rotation_rows(const DecoderSpec& spec, bool are_neighbours) {
  const int64_t e = spec.head_dim;
  const auto* attention = spec.first<AttentionSpec>();
  const bool is_partial = attention && attention->rope && attention->rope->rotated;
  return rotation_rows(e, (is_partial ? attention->rope->rotated : e) / 2, are_neighbours);
}

std::function<int64_t(int64_t)> rotation_rows(int64_t e, int64_t turning, bool are_neighbours) {
  const int64_t half = e / 2;
  return [=](int64_t row) {
    const int64_t i = row % half;
    const bool is_second = row % e >= half;
    int64_t at = 2 * turning + (is_second ? half - turning : 0) + (i - turning);
    if (i < turning) at = are_neighbours ? 2 * i + is_second : i + (is_second ? turning : 0);
    return row / e * e + at;
  };
}

std::string renamed(std::string name,
                    std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  for (const auto& [from, to] : parts)
    if (const size_t at = name.find(from); at != std::string::npos)
      return name.replace(at, from.size(), to);
  return name;
}

}  // namespace invar
