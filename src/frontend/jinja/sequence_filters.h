// Filters of lists and dicts, by their names in templates. filters.cc has the others and the table.
#pragma once

#include "frontend/jinja/operations.h"

namespace invar::jinja::filters {

Value sort(Budget& budget, const Value& input, const Arguments& a);
Value dictsort(Budget& budget, const Value& input, const Arguments& a);
Value unique(Budget& budget, const Value& input, const Arguments& a);
// min and max, by sign -1 and 1.
Value extreme(Budget& budget, const Value& input, const Arguments& a, const char* name, int sign);
// map: a filter's name with its arguments, or an attribute.
Value map(Budget& budget, const Value& input, const Arguments& a);
// select, reject and the same by an attribute.
Value choose(Budget& budget, const Value& input, const Arguments& a, bool wanted, bool by_path);
Value join(Budget& budget, const Value& input, const Arguments& a);
Value sum(Budget& budget, const Value& input, const Arguments& a);
Value reverse(Budget& budget, const Value& input, const Arguments& a);
Value first_or_last(Budget& budget, const Value& input, const Arguments& a, bool first);
Value items(Budget& budget, const Value& input, const Arguments& a);

}  // namespace invar::jinja::filters
