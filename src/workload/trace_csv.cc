// Traces as csv: a header with names, then numbers.
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/number_of.h"
#include "workload/requests.h"

namespace invar {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    fields.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

// Where an error is and what stands there.
struct Place {
  std::string_view where;
  size_t line;

  template <typename T>
  T number(std::string_view text, const char* what, T low, T high) const {
    const auto value = number_of<T>(text);
    if (!value || !(*value >= low && *value <= high))
      fail("{} line {}: expected {} from {} to {}, found {}", where, line, what, low, high,
           json::quoted(text));
    return *value;
  }
};

// Seconds of "2023-11-16" and "18:17:03.979960", counted from 1970.
double seconds_of(const Place& place, std::string_view date, std::string_view time) {
  const auto d = split(date, '-'), t = split(time, ':');
  if (d.size() != 3 || t.size() != 3)
    fail("{} line {}: expected a date as 2023-11-16 and a time as 18:17:03.5, found {} and {}",
         place.where, place.line, json::quoted(date), json::quoted(time));
  using namespace std::chrono;
  const year_month_day day{year(place.number(d[0], "a year", 1970, 9999)),
                           month(place.number(d[1], "a month", 1u, 12u)),
                           std::chrono::day(place.number(d[2], "a day", 1u, 31u))};
  if (!day.ok())
    fail("{} line {}: expected a day of the calendar, found {}", place.where, place.line,
         json::quoted(date));
  return 86400.0 * sys_days(day).time_since_epoch().count() +
         3600.0 * place.number(t[0], "an hour", 0, 23) +
         60.0 * place.number(t[1], "a minute", 0, 59) +
         place.number(t[2], "a second", 0.0, 60.999999999);
}

// Columns of the header by name.
class HeaderColumns {
 public:
  HeaderColumns(std::string_view header) : names_(split(header, ',')) {}

  size_t size() const { return names_.size(); }
  std::optional<size_t> find(std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) return std::nullopt;
    return static_cast<size_t>(found - names_.begin());
  }

 private:
  std::vector<std::string_view> names_;
};

}  // namespace

TraceTable parse_trace(std::string_view csv, std::string_view where) {
  const auto lines = split(csv, '\n');
  std::string_view header = lines[0];
  if (header.starts_with("\xef\xbb\xbf")) header.remove_prefix(3);
  const HeaderColumns columns(header);
  const auto date = columns.find("Date"), time = columns.find("Time"),
             arrived = columns.find("arrived_at");
  const bool has_dates = date && time;
  TraceTable table{.has_times = has_dates || arrived};
  const auto prompt = columns.find(has_dates ? "PromptTokenCount" : "num_prefill_tokens");
  const auto answer = columns.find(has_dates ? "CompletionTokenCount" : "num_decode_tokens");
  if (!prompt || !answer)
    fail(
        "{}: expected the columns num_prefill_tokens and num_decode_tokens, or Date, Time, "
        "PromptTokenCount and CompletionTokenCount, found {}",
        where, json::quoted(header));
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const Place place{where, i + 1};
    const auto fields = split(lines[i], ',');
    if (fields.size() != columns.size())
      fail("{} line {}: expected {} fields, found {}", where, i + 1, columns.size(), fields.size());
    LoadRequest r;
    r.prompt = place.number(fields[*prompt], "tokens of a prompt", 1, 1 << 24);
    // A request that was cut off answered nothing; it still asked for a token.
    r.answer = std::max(1, place.number(fields[*answer], "tokens of an answer", 0, 1 << 24));
    if (has_dates)
      r.arrival = seconds_of(place, fields[*date], fields[*time]);
    else if (arrived)
      r.arrival = place.number(fields[*arrived], "seconds", 0.0, 1e9);
    table.rows.push_back(r);
  }
  if (table.rows.empty()) fail("{}: expected requests, found none", where);
  const auto earlier = [](const LoadRequest& a, const LoadRequest& b) {
    return a.arrival < b.arrival;
  };
  std::stable_sort(table.rows.begin(), table.rows.end(), earlier);
  const double first = table.rows.front().arrival;
  for (LoadRequest& r : table.rows) r.arrival -= first;
  return table;
}

}  // namespace invar
