// How byte pairs cut text before they merge, for each name that GGUF files have for it.
#include "weights/gguf_texts.h"

namespace invar {

namespace {

// The patterns are those of the models' own tokenizer.json.
const std::vector<GgufPreTokenizer> kPreTokenizers = {
    {.names = "llama-bpe llama3 llama-v3 dbrx smaug-bpe falcon3 falcon-h1 lfm2 pixtral midm-2.0",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                  R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .ignores_merges = true,
     .adds_bos = true},
    {.names = "qwen2 deepseek-r1-qwen megrez kormo",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                  R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .is_nfc = true},
    {.names = "qwen35",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                  R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .is_nfc = true},
    {.names = "olmo2 stablelm2 hunyuan glm4 chatglm-bpe",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                  R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "deepseek-v3",
     .patterns = {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
                  R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                  R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
                  R"(\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .adds_bos = true},
    {.names = "deepseek-llm",
     .patterns =
         {R"([\r\n])",
          R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ)"
          R"(-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥ)"
          R"(ῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ)"
          R"(ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)",
          R"(\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+)", R"(\s+$)",
          R"([一-龥\x{0800}-一가-\x{D7FF}]+)"},
     .splits_digits = true,
     .adds_bos = true},
    {.names = "deepseek-coder",
     .patterns = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([一-龥\x{0800}-一가-\x{D7FF}]+)"},
     .splits_digits = true,
     .adds_bos = true},
    {.names = "tekken",
     .patterns = {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                  R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .ignores_merges = true,
     .adds_bos = true},
    {.names = "gpt-4o llama4",
     .patterns = {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "kimi-k2",
     .patterns = {R"([\p{Han}]+|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "gpt-2 phi-2 jina-v2-es jina-v2-de jina-v2-code mpt olmo exaone gigachat",
     .has_gpt2_pattern = true},
    {.names = "smollm starcoder refact command-r codeshell",
     .splits_digits = true,
     .has_gpt2_pattern = true},
};

}  // namespace

const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers() {
  return kPreTokenizers;
}

}  // namespace invar
