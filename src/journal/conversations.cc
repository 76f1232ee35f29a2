#include "conversations.h"

#include <algorithm>
#include <vector>

namespace invar::server {

using sqlite::Connection;
using sqlite::Statement;

Conversations::Conversations(Connection& in)
    : begin_(in, "INSERT INTO said(id, previous, bytes, input) VALUES(?, ?, ?, ?)"),
      end_(in, "UPDATE said SET output = ?, bytes = bytes + ? WHERE id = ? AND output IS NULL"),
      previous_(in, "SELECT previous FROM said WHERE id = ?"),
      remove_(in, "DELETE FROM said WHERE id = ?"),
      is_needed_(in,
                 "SELECT 1 FROM line WHERE id = ?1 UNION ALL SELECT 1 FROM said WHERE previous = "
                 "?1 LIMIT 1") {}

void Conversations::begin(const std::string& id, const Said& said) {
  begin_.reset().bind(id);
  said.previous.empty() ? begin_.bind_null() : begin_.bind(said.previous);
  begin_.bind(std::ssize(said.input)).bind(said.input).run();
}

bool Conversations::end(const std::string& id, const std::string& output) {
  end_.reset().bind(output).bind(std::ssize(output)).bind(id).run();
  return end_.connection().changes() == 1;
}

bool Conversations::goes_on(const std::string& id) {
  return is_needed_.reset().bind(id).step();
}

void Conversations::forget(const std::string& id) {
  for (std::string at = id; !at.empty() && !goes_on(at);) {
    if (!previous_.reset().bind(at).step()) break;
    std::string before = previous_.bytes(0);
    remove_.reset().bind(at).run();
    at = std::move(before);
  }
  is_needed_.reset();
  previous_.reset();
}

std::optional<Conversation> find_conversation(const Connection& in, const std::string& id) {
  Statement part(in, "SELECT previous, input, output FROM said WHERE id = ?");
  if (!part.bind(id).step()) return std::nullopt;
  Conversation found{.has_ended = true};
  std::vector<std::string> lists;  // from the last to the first
  std::string previous;
  do {
    if (part.is_null(2)) return Conversation{};
    lists.push_back(part.bytes(2));
    lists.push_back(part.bytes(1));
    previous = part.bytes(0);
  } while (!previous.empty() && part.reset().bind(previous).step());
  std::ranges::reverse(lists);
  for (const std::string& list : lists) {
    const std::string_view items = std::string_view(list).substr(1, list.size() - 2);
    if (!items.empty() && !found.items.empty()) found.items += ',';
    found.items += items;
  }
  found.items = "[" + found.items + "]";
  return found;
}

int64_t conversation_bytes(const Connection& in, const std::string& id) {
  Statement part(in, "SELECT previous, bytes FROM said WHERE id = ?");
  int64_t bytes = 0;
  for (std::string at = id; !at.empty() && part.reset().bind(at).step(); at = part.bytes(0))
    bytes += part.integer(1);
  return bytes;
}

}  // namespace invar::server
