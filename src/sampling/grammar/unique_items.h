// Where an answer stands in the arrays whose items must differ (uniqueItems of its JSON schema), as
// far as their spelling says: items that are written alike are the same.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

// A value, a function of the answer so far: a draft branch copies its parent's.
class UniqueItems {
 public:
  // The schema is a normal one (normal_schema); it and its references outlive this.
  UniqueItems(const json::Value& schema, const SchemaReferences& references)
      : schema_(&schema), references_(&references) {}

  // The answer goes on with bytes that its grammar allows.
  void read(std::string_view bytes);

  // Calls use(rest, needs_end) for all that would make the item being written one that its array
  // has already: a `rest` that ends the item itself, or one that the item's end must follow.
  void for_repeats(FunctionRef<void(std::string_view rest, bool needs_end)> use) const;

 private:
  using Schemas = std::vector<const json::Value*>;
  struct Open {
    bool is_array = false, is_unique = false;
    Schemas schemas;   // that it may have to follow
    size_t index = 0;  // of an array's item
    std::string name;  // of an object's member
    bool awaits_name = true;
    std::set<std::string> items;  // that are whole, of a unique array
    std::string item;             // as far as it is written
  };

  void read_in_string(char byte);
  void read_outside(char byte);
  void open(bool is_array);
  // An item of every unique array around goes on, but not of the innermost if it is the array that
  // the byte structures.
  void write(char byte, bool structures = false);
  Schemas schemas_here() const;
  void add(const json::Value& schema, Schemas& all) const;

  const json::Value* schema_;
  const SchemaReferences* references_;
  std::vector<Open> open_;
  bool in_string_ = false, is_escaped_ = false;
};

}  // namespace invar::grammar
