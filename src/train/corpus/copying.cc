#include <fmt/format.h>

#include <algorithm>

#include "train/corpus/phrase.h"
#include "train/corpus/tasks.h"
#include "train/corpus/words.h"

namespace invar::corpus {

namespace {

constexpr const char* kOrdinals[] = {"first", "second", "third", "fourth", "fifth"};

std::string some_item(Random& random) {
  switch (random.below(5)) {
    case 0:
      return std::string(random.pick(kThings));
    case 1:
      return fmt::format("{} {}", random.pick(kColors), random.pick(kToys));
    case 2:
      return std::string(random.pick(kFoods));
    case 3:
      return std::to_string(random.between(10, 99));
    default:
      return std::string(random.one_in(2) ? random.pick(kGirls) : random.pick(kBoys));
  }
}

std::vector<std::string> different_items(Random& random, int count) {
  std::vector<std::string> items;
  while (std::ssize(items) < count) {
    std::string item = some_item(random);
    if (std::find(items.begin(), items.end(), item) == items.end())
      items.push_back(std::move(item));
  }
  return items;
}

std::string bullets(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += "- " + item + "\n";
  text.pop_back();
  return text;
}

std::string numbered(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) text += fmt::format("{}. {}\n", i + 1, items[i]);
  text.pop_back();
  return text;
}

std::string commas(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

Turn list_task(Random& random) {
  const auto items = different_items(random, random.between(2, 5));
  const int which = random.below(static_cast<int>(items.size()));
  switch (random.below(6)) {
    case 0:
      return {"Copy this list.\n" + bullets(items), bullets(items)};
    case 1:
      return {"Number the items of this list.\n" + bullets(items), numbered(items)};
    case 2:
      return {"Write this as a list: " + commas(items), bullets(items)};
    case 3:
      return {
          fmt::format("What is the {} item of this list?\n{}", kOrdinals[which], bullets(items)),
          fmt::format("The {} item is {}.", kOrdinals[which], items[which])};
    case 4:
      return {"How many items does this list have?\n" + bullets(items),
              fmt::format("The list has {} items.", items.size())};
    default:
      return {"Repeat: " + commas(items), commas(items)};
  }
}

struct Row {
  std::string name, color;
  int count;
};

std::vector<Row> different_rows(Random& random) {
  std::vector<Row> rows;
  const int count = random.between(2, 3);
  while (std::ssize(rows) < count) {
    Row row{std::string(random.one_in(2) ? random.pick(kGirls) : random.pick(kBoys)),
            std::string(random.pick(kColors)), random.between(2, 40)};
    const auto same = [&](const Row& other) { return other.name == row.name; };
    if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back(std::move(row));
  }
  return rows;
}

std::string table(const std::vector<Row>& rows) {
  std::string text = "| name | color | count |\n| --- | --- | --- |";
  for (const Row& r : rows) text += fmt::format("\n| {} | {} | {} |", r.name, r.color, r.count);
  return text;
}

std::string as_json(const std::vector<Row>& rows) {
  std::string text = "[";
  for (const Row& r : rows)
    text += fmt::format(R"({}{{"name": "{}", "color": "{}", "count": {}}})",
                        text.size() > 1 ? ", " : "", r.name, r.color, r.count);
  return text + "]";
}

Turn json_turn(const std::vector<Row>& rows) {
  return {"Write this table as JSON.\n" + table(rows), as_json(rows)};
}

Turn table_task(Random& random) {
  const auto rows = different_rows(random);
  const Row& row = random.pick(rows);
  switch (random.below(5)) {
    case 0:
      return {"Copy this table.\n" + table(rows), table(rows)};
    case 1:
      return json_turn(rows);
    case 2:
      return {fmt::format("{}\nWhich color does {} have?", table(rows), row.name),
              fmt::format("{} has the color {}.", row.name, row.color)};
    case 3:
      return {fmt::format("{}\nWhat is the count of {}?", table(rows), row.name),
              fmt::format("The count of {} is {}.", row.name, row.count)};
    default:
      return {"Write this JSON as a table.\n" + as_json(rows), table(rows)};
  }
}

}  // namespace

Turn make_copying(Random& random) {
  return random.one_in(3) ? table_task(random) : list_task(random);
}

Turn make_json(Random& random) {
  const auto rows = different_rows(random);
  return json_turn(rows);
}

}  // namespace invar::corpus
