#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/fill_in_middle.h"
#include "frontend/foreign_fields.h"
#include "frontend/ollama.h"
#include "frontend/openai_sampling.h"

namespace invar::ollama {

namespace {

using openai::ForeignField;
using openai::RequestWarnings;

constexpr ForeignField kRefused[] = {
    {"images", "[]", "the model reads text alone"},
    {"template", "\"\"", "the server's own is used; \"raw\": true renders none"},
    {"context", "[]", "send the conversation to /api/chat"},
    {"steps", "0"},
    {"width", "0"},
    {"height", "0"},
};
// Fields that a chat or a completion has under the same name.
constexpr std::string_view kSame[] = {"tools",    "logits_hash", "cache_salt",
                                      "priority", "logprobs",    "top_logprobs"};
// Read elsewhere.
constexpr std::string_view kKnown[] = {"model",  "messages", "prompt", "system",  "suffix",
                                       "stream", "raw",      "format", "options", "think"};
// How Ollama's runner is to compute: no answer depends on it here.
constexpr std::string_view kRunner[] = {"num_batch",
                                        "num_gpu",
                                        "main_gpu",
                                        "use_mmap",
                                        "use_mlock",
                                        "num_thread",
                                        "low_vram",
                                        "f16_kv",
                                        "numa",
                                        "vocab_only",
                                        "logits_all",
                                        "embedding_only",
                                        "num_gqa",
                                        "rope_frequency_base",
                                        "rope_frequency_scale"};
constexpr ForeignField kRefusedOptions[] = {
    {"mirostat", "0"}, {"typical_p", "1"},      {"tfs_z", "1"},
    {"min_keep", "0"}, {"dry_multiplier", "0"},
};
// Settings of options that are off, which say nothing alone.
constexpr std::string_view kIdle[] = {"mirostat_tau", "mirostat_eta", "penalize_newline"};
constexpr std::string_view kSameOptions[] = {
    "temperature",      "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty",
    "frequency_penalty"};

void read_option(const std::string& name, const json::Value& value, json::Value& chat,
                 RequestWarnings& warnings) {
  if (among(name, kSameOptions)) {
    chat.set(name, value);
  } else if (name == "num_predict") {
    // Below 1 the answer may fill the context.
    if (integer_of(value, name, -2, INT32_MAX) > 0) chat.set("max_tokens", value);
  } else if (name == "num_ctx") {
    integer_of(value, name, 0, INT32_MAX);
    warnings.add("num_ctx is not changed by a request: the context is the server's");
  } else if (name == "num_keep") {
    warnings.add("num_keep has no effect: no part of a prompt is dropped");
  } else if (among(name, kRunner)) {
    warnings.add(
        fmt::format("the option {} has no effect: the server computes as it was started", name));
  } else if (name != "repeat_penalty" && name != "repeat_last_n" && !among(name, kIdle) &&
             !find_field(kRefusedOptions, name)) {
    warnings.add(fmt::format("the option {} is not known and is ignored", json::quoted(name)));
  }
}

void read_options(const json::Value& options, json::Value& chat, RequestWarnings& warnings) {
  if (!options.is_object())
    fail_usage("expected options as an object, found {}", options.type_name());
  refuse_fields(options, kRefusedOptions);
  for (const auto& [name, value] : options.as_object())
    if (!value.is_null()) read_option(name, value, chat, warnings);
  openai::read_repeat_penalty(BodyFields(options), chat, warnings);
}

// "json" or a schema.
void read_format(const json::Value& format, json::Value& chat) {
  if (format == json::Value("")) return;
  if (format == json::Value("json"))
    return chat.set("response_format", json::Object{{"type", "json_object"}});
  if (!format.is_object())
    fail_usage("expected format as \"json\" or a JSON schema, found {}", json::excerpt(format));
  chat.set("response_format",
           json::Object{{"type", "json_schema"},
                        {"json_schema", json::Object{{"name", "format"}, {"schema", format}}}});
}

// true, false, or how much.
void read_think(const json::Value& think, bool thinks, json::Value& chat) {
  const bool is_off = think == json::Value(false);
  if (!think.is_bool() && !think.is_string())
    fail_usage("expected think as true, false or a level, found {}", json::excerpt(think));
  if (!thinks && is_off) return;
  if (!thinks)
    fail_usage("the field \"think\" is not supported: the model has no thoughts, found {}",
               json::excerpt(think));
  think.is_bool() ? chat.set("enable_thinking", think) : chat.set("reasoning_effort", think);
}

// All but the prompt.
json::Value common_body(const json::Value& body, bool thinks, RequestWarnings& warnings) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  refuse_fields(body, kRefused);
  const BodyFields fields(body);
  json::Value chat = json::Object{{"stream", fields.read_flag("stream", true)}};
  if (const json::Value* model = fields.find("model"))
    chat.set("model", name_without_tag(text_of(*model, "model")));
  for (const auto& [name, value] : body.as_object()) {
    if (value.is_null() || among(name, kKnown) || find_field(kRefused, name)) continue;
    if (among(name, kSame))
      chat.set(name, value);
    else if (name == "keep_alive")
      warnings.add("keep_alive has no effect: the model stays while the server runs");
    else if (name == "truncate" || name == "shift")
      warnings.add(fmt::format("{} has no effect: nothing of a prompt is dropped", name));
    else
      warnings.add(fmt::format("the field {} is not known and is ignored", json::quoted(name)));
  }
  if (const json::Value* options = fields.find("options")) read_options(*options, chat, warnings);
  if (const json::Value* format = fields.find("format")) read_format(*format, chat);
  if (const json::Value* think = fields.find("think")) read_think(*think, thinks, chat);
  return chat;
}

// A message as a chat completion has it: thoughts under their name there, a result's tool by name.
json::Value message_of(const json::Value& message) {
  if (!message.is_object())
    fail_usage("expected messages as objects, found {}", message.type_name());
  const json::Value* images = message.find("images");
  if (images && !images->is_null() && *images != json::Value(json::Array()))
    fail_usage("the field \"images\" is not supported: the model reads text alone");
  json::Value chat = json::Object();
  for (const auto& [name, value] : message.as_object()) {
    if (name == "images" || value.is_null()) continue;
    if (name == "thinking")
      chat.set("reasoning_content", value);
    else if (name == "tool_name")
      chat.set("name", value);
    else
      chat.set(name, value);
  }
  if (!chat.find("content")) chat.set("content", "");
  return chat;
}

bool has_thoughts(const openai::Context& context) {
  return context.thought_format != ThoughtFormat::none;
}

}  // namespace

std::string name_with_tag(std::string_view name) {
  const size_t slash = name.rfind('/');
  const bool has_tag = name.substr(slash == name.npos ? 0 : slash).find(':') != name.npos;
  return std::string(name) + (has_tag ? "" : ":latest");
}

std::string name_without_tag(std::string_view name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.remove_suffix(kLatest.size());
  return std::string(name);
}

json::Value chat_body_of(const json::Value& body, const openai::Context& context,
                         RequestWarnings& warnings) {
  json::Value chat = common_body(body, has_thoughts(context), warnings);
  const json::Value* given = body.find("messages");
  if (!given || !given->is_array() || given->as_array().empty())
    fail_usage("expected \"messages\" as a list of at least one, found {}",
               given ? json::excerpt(*given) : "none");
  json::Array messages;
  for (const json::Value& message : given->as_array()) messages.push_back(message_of(message));
  chat.set("messages", std::move(messages));
  return chat;
}

Generated generate_body_of(const json::Value& body, const openai::Context& context,
                           RequestWarnings& warnings) {
  Generated made{.body = common_body(body, has_thoughts(context), warnings)};
  const BodyFields fields(body);
  const json::Value* prompt = fields.find("prompt");
  const std::string text = prompt ? text_of(*prompt, "prompt") : "";
  const json::Value* suffix = fields.find("suffix");
  const std::string behind = suffix ? text_of(*suffix, "suffix") : "";
  const json::Value* system = fields.find("system");
  const bool is_raw = fields.read_flag("raw", false);
  made.is_chat = !is_raw && behind.empty();
  if (!made.is_chat) {
    if (system && *system != json::Value(""))
      fail_usage("expected no \"system\" beside \"raw\" or \"suffix\", found {}",
                 json::excerpt(*system));
    std::erase_if(made.body.as_object(), [](const json::Member& member) {
      return member.first == "enable_thinking" || member.first == "reasoning_effort";
    });
    made.body.set("prompt", behind.empty()
                                ? json::Value(text)
                                : middle_prompt(context, {.prefix = text, .suffix = behind}));
    return made;
  }
  json::Array messages;
  if (system && *system != json::Value(""))
    messages.push_back(json::Object{{"role", "system"}, {"content", text_of(*system, "system")}});
  messages.push_back(json::Object{{"role", "user"}, {"content", text}});
  made.body.set("messages", std::move(messages));
  return made;
}

namespace {

constexpr std::string_view kOfEmbedding[] = {"model",      "name",    "input",   "prompt",
                                             "dimensions", "options", "truncate"};

}  // namespace

bool cuts_texts(const json::Value& body) {
  return BodyFields(body).read_flag("truncate", true);
}

json::Value embed_body_of(const json::Value& body, bool is_one, RequestWarnings& warnings) {
  const BodyFields fields(body);
  const char* field = is_one ? "prompt" : "input";
  const json::Value* input = fields.find(field);
  if (!input) fail_usage("expected \"{}\" in the body of the request", field);
  json::Value made = json::Object{{"input", *input}};
  const json::Value* dimensions = is_one ? nullptr : fields.find("dimensions");
  if (dimensions) made.set("dimensions", *dimensions);
  // Longer ones than any context are looked at where they are cut.
  if (cuts_texts(body)) made.set("truncate_prompt_tokens", INT32_MAX);
  for (const auto& [name, value] : body.as_object()) {
    if (value.is_null() || among(name, kOfEmbedding)) continue;
    if (name == "keep_alive")
      warnings.add("keep_alive has no effect: the model stays while the server runs");
    else
      warnings.add(fmt::format("the field {} is not known and is ignored", json::quoted(name)));
  }
  const json::Value* options = fields.find("options");
  if (options && !options->is_object())
    fail_usage("expected options as an object, found {}", options->type_name());
  for (const auto& [name, value] : options ? options->as_object() : json::Object())
    if (!value.is_null())
      warnings.add(
          fmt::format("the option {} has no effect on vectors: the server computes as it "
                      "was started",
                      json::quoted(name)));
  return made;
}

bool only_loads(const json::Value& body, bool is_chat) {
  if (!body.is_object()) return false;
  const json::Value* said = body.find(is_chat ? "messages" : "prompt");
  const json::Value* suffix = body.find("suffix");
  if (!is_chat && suffix && *suffix != json::Value("")) return false;
  return !said || said->is_null() || *said == json::Value("") ||
         *said == json::Value(json::Array());
}

}  // namespace invar::ollama
