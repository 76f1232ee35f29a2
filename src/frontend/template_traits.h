// The abilities of a chat template, found by rendering small conversations with it once.
#pragma once

#include <string_view>

#include "frontend/jinja/template.h"
#include "frontend/tool_calls.h"

namespace invar {

struct TemplateTraits {
  enum class System {
    anywhere,  // wherever it stands
    first,     // as the first message alone
    none,      // nowhere: it is refused or left out
  };
  enum class Ids {
    any,
    brief,  // nine letters or digits
    named,  // functions.NAME:NUMBER, which the template shows instead of the name
  };
  // The content of a message that has calls and no words.
  enum class NoWords { empty, null, absent };

  bool reads_thinking = false;     // thoughts under the name `thinking`, too
  bool takes_parts = false;        // a user's content may be a list of parts
  bool parts_alone = false;        // every content must be one
  bool empty_answers = true;       // an answer may have no words
  bool repeats_roles = true;       // two messages of one role may stand in a row
  bool user_after_tool = true;     // a user may speak before the assistant has answered a result
  bool starts_with_answer = true;  // the assistant may speak before a user
  // The words of the answer that must stand between a call without a result and a user; null: none.
  const char* answer_to_call = nullptr;
  System system = System::anywhere;
  bool lone_system = true;  // a system message may stand where no user says anything

  bool lists_no_tools = false;           // no tools are an empty list, else null
  ToolFormat format = ToolFormat::none;  // in which calls are written, as the template says
  bool shows_tools = true;
  bool spells_nulls = false;  // null members of tools' schemas are shown as None
  bool shows_calls = true;
  bool shows_results = true;
  // For templates that show calls:
  bool text_arguments = false;  // arguments are a text, else an object
  // Arguments that are no texts and no numbers are shown as Python spells them, beside plain texts.
  bool spells_arguments = false;
  bool spells_null_arguments = false;  // of arguments, null alone
  Ids ids = Ids::any;
  bool calls_beside_words = true;     // a message that has calls may say something, too
  bool calls_beside_thoughts = true;  // and may do so behind a thought
  bool single_calls = false;          // a message may have one call alone
  NoWords no_words = NoWords::empty;
};

// `fixed`: variables that every conversation has, such as bos_token. A template that does not show
// what a user says keeps the traits that change nothing.
TemplateTraits traits_of(const jinja::Template& program, std::string_view source,
                         const jinja::Variables& fixed);

}  // namespace invar
