// Every route has a door, which bounds what its requests take; docs/limits.md has the same table.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "local_client.h"
#include "server/api.h"
#include "server/door.h"
#include "server/doors.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

// Never answers.
struct IdleBackend final : Backend {
  void start(BackendSink&) override {}
  void stop() override {}
  BackendFacts facts() const override {
    return {.identity = "none", .vocab = 512, .max_model_len = 256};
  }
  BackendStats stats() const override { return {}; }
  void submit(Request) override {}
  void cancel(int64_t) override {}
};

struct Case {
  explicit Case(size_t places) {
    options.http.host = "127.0.0.1";
    options.http.port = 0;
    options.keys.trusts_trainers = true;
    options.keys.client = {"k"};
    options.max_queued = places;
    server.emplace(options, served, backend, nullptr);
    serving = std::jthread([this] { server->run(); });
  }
  ~Case() {
    ::raise(SIGTERM);
    serving.join();
  }
  LocalClient client(const std::string& method, std::string path, const std::string& headers,
                     const std::string& body = {}) const {
    for (size_t at; (at = path.find('{')) != path.npos;)
      path.replace(at, path.find('}') + 1 - at, "x");
    return LocalClient(server->port(), method + " " + path +
                                           " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n" +
                                           headers + "\r\n" + body);
  }
  int status(const DoorRow& row, const std::string& body) const {
    return client(row.method, row.path, "Content-Length: " + std::to_string(body.size()) + "\r\n",
                  body)
        .status();
  }

  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  const ServedModel served{.names = {"m"}, .tokenizer = &tokenizer};
  IdleBackend backend;
  ServerOptions options;
  std::optional<Server> server;
  std::jthread serving;
};

const char* words_of(Door::Body body) {
  switch (body) {
    case Door::Body::small:
      return "64 KiB";
    case Door::Body::tokens:
      return "256 bytes for each token of the context, 1 MiB at least";
    case Door::Body::whole:
      return "32 MiB";
  }
  return "";
}

std::string table() {
  std::map<std::string, std::string> routes;
  std::map<std::string, const Door*> doors;
  for (const DoorRow& row : Server::doors()) {
    std::string& all = routes[row.door.name];
    const std::string words = "`" + row.method + " " + row.path + "`";
    all += all.empty() ? words : ", " + words;
    doors[row.door.name] = &row.door;
  }
  std::string text =
      "| door | largest body | body is read | place | memory | routes "
      "|\n|---|---|---|---|---|---|\n";
  for (const auto& [name, door] : doors)
    text += "| " + name + " | " + words_of(door->body) + " | " +
            (door->read_while_serving ? "on the serving thread" : "on the pool") + " | " +
            door->place + " | " + door->memory + " | " + routes[name] + " |\n";
  return text;
}

TEST(Doors, TheDocumentHasTheSameTable) {
  std::ifstream file(DOCS "/limits.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(table()), std::string::npos) << "docs/limits.md should have\n"
                                                         << table();
}

TEST(Doors, ThoseOfAnswersTakePlacesAndThoseOfFilesTakeMemory) {
  EXPECT_TRUE(doors::kAnswer.takes_slots && doors::kEmbedding.takes_slots);
  EXPECT_FALSE(doors::kFile.takes_slots);
  EXPECT_EQ(doors::kFile.body, Door::Body::whole);
}

TEST(Doors, WhatIsReadWhileServingIsSmall) {
  for (const DoorRow& row : Server::doors())
    EXPECT_TRUE(!row.door.read_while_serving || row.door.body == Door::Body::small) << row.path;
}

TEST(Doors, ALargerBodyThanTheDoorsIsRefusedBeforeItIsRead) {
  const Case c(64);
  const std::map<Door::Body, size_t> most = {
      {Door::Body::small, 64 << 10}, {Door::Body::tokens, 1 << 20}, {Door::Body::whole, 32 << 20}};
  for (const DoorRow& row : Server::doors()) {
    const size_t bytes = most.at(row.door.body);
    const std::string length = "Content-Length: " + std::to_string(bytes + 1) + "\r\n";
    EXPECT_EQ(c.client(row.method, row.path, length).status(), 413) << row.method << row.path;
    const std::string fits =
        "Content-Length: " + std::to_string(bytes) + "\r\nExpect: 100-continue\r\n";
    EXPECT_EQ(c.client(row.method, row.path, fits).status(), 100) << row.method << row.path;
  }
}

TEST(Doors, WhatTakesPlacesIsRefusedWhereThereAreNoneAndNothingElseIs) {
  const Case c(1);
  const std::string body = R"({"prompt": [1, 2], "text": "x", "prompts": ["x"], "input": "x"})";
  const LocalClient first = c.client(
      "POST", "/v1/completions", "Content-Length: " + std::to_string(body.size()) + "\r\n", body);
  const auto is_begun = [&] {
    return c.client("GET", "/load", "").text().find("\"server_load\": 1") != std::string::npos;
  };
  for (int i = 0; i < 1000 && !is_begun(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(is_begun());
  for (const DoorRow& row : Server::doors()) {
    if (row.door.takes_slots) {
      EXPECT_EQ(c.status(row, body), 429) << row.method << row.path;
    } else if (row.door.read_while_serving && row.method == "GET") {
      EXPECT_NE(c.status(row, ""), 429) << row.method << row.path;
    }
  }
}

}  // namespace
}  // namespace invar::server
