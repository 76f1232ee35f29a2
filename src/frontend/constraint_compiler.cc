#include "frontend/constraint_compiler.h"

#include <span>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/request_limits.h"
#include "frontend/thoughts.h"
#include "sampling/grammar/languages.h"

namespace invar {

namespace {

// Special tokens have no bytes, but for these.
std::shared_ptr<const TokenTable> table_of(const Tokenizer& tokenizer,
                                           std::span<const int32_t> special) {
  std::vector<std::string> bytes(tokenizer.vocab_size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id)) bytes[id] = tokenizer.token_bytes(id);
  for (const int32_t id : special) bytes[id] = tokenizer.token_text(id);
  return std::make_shared<const TokenTable>(bytes);
}

// The special tokens that calls have as marks.
std::vector<int32_t> marks_in(const json::Value& calls, const Tokenizer& tokenizer) {
  constexpr size_t kMostMarks = 16;
  std::vector<int32_t> special;
  const json::Value* marks = calls.find("marks");
  for (const json::Value& mark : marks && marks->is_array() ? marks->as_array() : json::Array())
    if (const auto id = mark.is_string() ? tokenizer.id_of(mark.as_string()) : std::nullopt;
        id && tokenizer.is_special(*id) && special.size() < kMostMarks)
      special.push_back(*id);
  return special;
}

grammar::Language choice_of(const json::Value& value) {
  if (!value.is_array()) fail_usage("expected texts to choose from, found {}", value.type_name());
  std::vector<std::string> texts;
  for (const json::Value& text : value.as_array()) {
    if (!text.is_string()) fail_usage("expected texts to choose from, found {}", text.type_name());
    texts.push_back(text.as_string());
  }
  return grammar::choice_language(texts);
}

grammar::Language schema_of(const json::Value& value, std::string_view whitespace) {
  if (!value.is_string()) return grammar::json_schema_language(value, whitespace);
  return grammar::json_schema_language(json::parse(value.as_string(), "the JSON schema"),
                                       whitespace);
}

// A member of what grammar_of_calls makes. Clients may send the like.
const json::Value& member_of(const json::Value& value, const char* name) {
  const json::Value* found = value.find(name);
  if (!found) fail_usage("expected \"{}\" in {}", name, json::excerpt(value));
  return *found;
}

bool is_true(const json::Value* value) {
  return value && *value == json::Value(true);
}

// Whether calls are messages of gpt_oss's channels.
bool has_channels(const json::Value& calls) {
  return is_true(calls.find("channels"));
}

// Form of a call (tool_calls.cc, form_of).
grammar::CallForm form_in(const json::Value& value) {
  grammar::CallForm form{.name = member_of(value, "name").as_string(),
                         .is_strict = member_of(value, "strict").as_bool(),
                         .parameters = {}};
  for (const json::Value& one : member_of(value, "parameters").as_array()) {
    grammar::CallParameter parameter{.name = member_of(one, "name").as_string(),
                                     .is_required = member_of(one, "required").as_bool(),
                                     .is_text = member_of(one, "text").as_bool(),
                                     .texts = {},
                                     .schema = member_of(one, "schema")};
    for (const json::Value& text : member_of(one, "texts").as_array())
      parameter.texts.push_back(text.as_string());
    form.parameters.push_back(std::move(parameter));
  }
  return form;
}

grammar::Language named_calls_of(const json::Value& value, const grammar::CallMarks& marks,
                                 bool once, const json::Value& answer) {
  std::vector<grammar::NamedCall> calls;
  for (const json::Value& one : member_of(value, "named").as_array())
    calls.push_back({member_of(one, "name").as_string(), member_of(one, "arguments")});
  if (has_channels(value) && !calls.empty())
    return grammar::channel_calls_language(calls, once, answer);
  std::vector<grammar::CallWords> ways;
  for (const json::Value& one : member_of(value, "words").as_array())
    ways.push_back({member_of(one, "before").as_string(), member_of(one, "between").as_string(),
                    member_of(one, "after").as_string(), is_true(one.find("number"))});
  if (calls.empty() || ways.empty()) fail_usage("expected calls and words around them, found none");
  const json::Value* spelling = value.find("spelling");
  const bool is_marked = spelling && *spelling == json::Value("marked");
  return grammar::named_calls_language(
      calls, ways, marks, once, answer,
      is_marked ? grammar::Spelling::marked : grammar::Spelling::json);
}

grammar::TagWords tags_in(const json::Value& value) {
  const auto text = [&](const char* name) { return member_of(value, name).as_string(); };
  return {.call = text("call"),
          .name_end = text("name_end"),
          .call_end = text("call_end"),
          .key = text("key"),
          .key_end = text("key_end"),
          .text_key_end = text("text_key_end"),
          .value = text("value"),
          .value_end = text("value_end"),
          .names_end = is_true(value.find("names_end")),
          .has_lines = member_of(value, "lines").as_bool(),
          .bare = text("bare")};
}

std::vector<grammar::CallForm> forms_in(const json::Value& value) {
  std::vector<grammar::CallForm> forms;
  for (const json::Value& one : value.as_array()) forms.push_back(form_in(one));
  if (forms.empty()) fail_usage("expected the form of at least one call, found none");
  return forms;
}

// The language of grammar_of_calls.
grammar::Language calls_of(const json::Value& value) {
  const json::Value *call = value.find("call"), *open = value.find("open"),
                    *close = value.find("close"), *once = value.find("once");
  if (!call || !open || !open->is_string() || !close || !close->is_string() || !once ||
      !once->is_bool())
    fail_usage("expected calls with call, open, close and once, found {}", json::excerpt(value));
  const json::Value *forms = value.find("forms"), *found = value.find("answer");
  const json::Value answer = found ? *found : json::Value();
  const grammar::CallMarks marks{open->as_string(), close->as_string(),
                                 is_true(value.find("several"))};
  if (value.find("named")) return named_calls_of(value, marks, once->as_bool(), answer);
  if (forms && marks.open.empty())
    return grammar::pythonic_calls_language(forms_in(*forms), once->as_bool(), answer);
  if (const json::Value* python = value.find("python"); forms && python)
    return grammar::marked_pythonic_language(
        forms_in(*forms), marks, *python == json::Value("lines"), once->as_bool(), answer);
  if (forms)
    return grammar::tag_calls_language(forms_in(*forms), tags_in(member_of(value, "tags")), marks,
                                       once->as_bool(), answer);
  if (marks.open.empty()) return grammar::bare_call_language(*call);
  return grammar::marked_calls_language(*call, marks, once->as_bool(), answer);
}

// The text between tokens of JSON.
std::string_view whitespace_of(const std::string& kind, const json::Value* found) {
  if (!found) return grammar::kCompact;
  if (!found->is_string() || (kind != "json" && kind != "json_object"))
    fail_usage("expected a pattern of white space beside a form of JSON, found {} beside {}",
               json::excerpt(*found), kind);
  return found->as_string();
}

grammar::Language language_of(const std::string& kind, const json::Value& value,
                              const json::Value* whitespace) {
  const std::string_view spacing = whitespace_of(kind, whitespace);
  if (kind == "choice") return choice_of(value);
  if (kind == "json") return schema_of(value, spacing);
  if (kind == "calls") return calls_of(value);
  if (kind == "json_object" && value.is_bool() && value.as_bool())
    return grammar::json_object_language(spacing);
  if (kind == "grammar" && value.is_string())
    return grammar::is_gbnf(value.as_string()) ? grammar::gbnf_language(value.as_string())
                                               : grammar::lark_language(value.as_string());
  if (kind != "regex" || !value.is_string())
    fail_usage(
        "expected regex, choice, grammar, json or json_object: true as the form of an answer, "
        "found {}: {}",
        kind, json::excerpt(value));
  return grammar::regex_language(value.as_string());
}

}  // namespace

void ConstraintCompiler::hold(Request& request) {
  const Shared<std::string>& text = request.structured_output;
  if (text.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (text == last_text_) {
      request.constraint = last_;
      request.thought = last_thought_;
      return;
    }
  }
  const json::Value what = json::parse(text.get(), "the structured output");
  request.constraint = compile(what);
  request.thought = thought(what);
  const std::lock_guard lock(mutex_);
  last_text_ = text;
  last_ = request.constraint;
  last_thought_ = request.thought;
}

std::shared_ptr<const ThoughtMarks> ConstraintCompiler::marks_of(ThoughtFormat format,
                                                                 bool has_channels) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const ThoughtMarks>& kept = marks_[{format, has_channels}];
  if (kept) return kept;
  std::vector<std::string> texts(static_cast<size_t>(tokenizer_.vocab_size()));
  for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id)
    texts[static_cast<size_t>(id)] = tokenizer_.token_bytes(id);
  const ThoughtStyle& style = style_of(format);
  auto marks = std::make_shared<ThoughtMarks>(std::string(style.open), std::string(style.close),
                                              std::move(texts));
  const EncodeOptions plain{.add_special_tokens = false};
  marks->repeats = style.repeats;
  marks->open_tokens = tokenizer_.encode(style.open, plain);
  marks->close_tokens = tokenizer_.encode(style.close, plain);
  marks->then_tokens = tokenizer_.encode(has_channels ? style.then_message : style.then, plain);
  return kept = std::move(marks);
}

std::shared_ptr<const ThoughtRules> ConstraintCompiler::thought(const json::Value& what) {
  const json::Value* found = what.find("thought");
  if (!found) return nullptr;
  const ThoughtGrammar grammar = thought_grammar_of(*found);
  const bool is_held = what.as_object().size() > 1;
  if (!is_held && grammar.budget < 0) return nullptr;
  const json::Value* calls = what.find("calls");
  return std::make_shared<ThoughtRules>(
      ThoughtRules{.marks = marks_of(grammar.view.format, calls && has_channels(*calls)),
                   .begun = grammar.view.begun,
                   .budget = grammar.budget});
}

void check_form(const json::Value& what) {
  if (!what.is_object()) return;  // which compile refuses
  for (const auto& [kind, form] : what.as_object()) {
    if (kind == "choice" && form.is_array())
      list_of(form, "texts in a choice", openai::kMaxChoices);
    const bool is_pattern = kind == "regex" || kind == "whitespace";
    const size_t most = is_pattern ? openai::kMaxRegexBytes : openai::kMaxFormBytes;
    const size_t bytes = form.is_string() ? form.as_string().size() : json::dump(form).size();
    if (bytes > most)
      fail_usage("expected the form of an answer ({}) of at most {} bytes, found {}", kind, most,
                 bytes);
  }
}

std::shared_ptr<Constraint> ConstraintCompiler::compile(const json::Value& all) {
  json::Value what = all;
  if (all.is_object() && all.find("thought")) {
    what = json::Object();
    for (const auto& [key, value] : all.as_object())
      if (key != "thought") what.set(key, value);
    if (what.as_object().empty()) return nullptr;
  }
  const json::Value* whitespace = what.find("whitespace");
  if (!what.is_object() || what.as_object().size() != (whitespace ? 2 : 1))
    fail_usage("expected one form of the answer, found {}", json::excerpt(what));
  const std::string text = json::dump(what);
  // As check_form, where each quote of a schema within a text has a byte more.
  if (text.size() > 2 * openai::kMaxFormBytes)
    fail_usage("expected the form of an answer of at most {} bytes of JSON, found {}",
               2 * openai::kMaxFormBytes, text.size());
  const Digest key = sha256(std::as_bytes(std::span(text)));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(key); found != kept_.end()) {
      found->second.used = ++uses_;
      if (!found->second.constraint) throw UsageError(found->second.refusal);
      return found->second.constraint;
    }
    ++compiled_;
  }
  Kept kept;
  try {
    kept.constraint = made(what);
  } catch (const FormsFull&) {
    throw;
  } catch (const UsageError& error) {
    kept.refusal = error.what();
  } catch (const Error& error) {  // of a schema's field that is of another type
    kept.refusal = fmt::format("the form of the answer: {}", error.what());
  }
  keep(key, kept);
  if (!kept.constraint) throw UsageError(kept.refusal);
  return kept.constraint;
}

std::shared_ptr<const TokenTable> ConstraintCompiler::tokens(const json::Value& form) {
  const std::vector<int32_t> special = marks_in(form, tokenizer_);
  const std::lock_guard lock(mutex_);
  const bool is_marked = !special.empty();
  if (is_marked && special != special_) marked_tokens_ = nullptr;  // a server has one format
  std::shared_ptr<const TokenTable>& table = is_marked ? marked_tokens_ : tokens_;
  if (is_marked) special_ = special;
  if (!table) table = table_of(tokenizer_, special);
  return table;
}

std::shared_ptr<Constraint> ConstraintCompiler::made(const json::Value& what) {
  const json::Object& members = what.as_object();
  const auto& [kind, value] = members[members[0].first == "whitespace" ? 1 : 0];
  const grammar::Language language = language_of(kind, value, what.find("whitespace"));
  try {
    return std::make_shared<Constraint>(language, tokens(value), memory_);
  } catch (const FormsFull&) {  // what is only kept gives way
    const std::lock_guard lock(mutex_);
    kept_.clear();
    last_text_ = {};
    last_ = nullptr;
  }
  return std::make_shared<Constraint>(language, tokens(value), memory_);
}

void ConstraintCompiler::keep(const Digest& key, Kept kept) {
  const std::lock_guard lock(mutex_);
  kept.used = ++uses_;
  const bool is_refusal = !kept.constraint;
  kept_.insert_or_assign(key, std::move(kept));
  drop_oldest(is_refusal);
  if (!memory_->is_crowded()) return;
  for (auto& [unused, one] : kept_)  // those that no answer has
    if (one.constraint && one.constraint.use_count() == 1) one.constraint->forget();
}

// As many as there are too many; the newest stays.
void ConstraintCompiler::drop_oldest(bool refusals) {
  while (true) {
    size_t count = 0, bytes = 0;
    auto oldest = kept_.end();
    for (auto at = kept_.begin(); at != kept_.end(); ++at) {
      const Constraint* constraint = at->second.constraint.get();
      if ((constraint == nullptr) != refusals) continue;
      ++count;
      bytes += constraint ? constraint->language_bytes() : 0;
      if (oldest == kept_.end() || at->second.used < oldest->second.used) oldest = at;
    }
    const bool fits = count <= (refusals ? kMaxRefusals : kMaxKept) && bytes <= kMaxKeptBytes;
    if (fits || count <= 1) return;
    kept_.erase(oldest);
  }
}

}  // namespace invar
