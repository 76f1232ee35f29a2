// Sockets, frames and started programs.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/child_process.h"
#include "base/error.h"
#include "base/frame_sender.h"
#include "base/frames.h"

namespace invar {
namespace {

TEST(Frames, ComeAsTheyWereSent) {
  auto [a, b] = socket_pair();
  FrameSocket sender(std::move(a)), receiver(std::move(b));
  const std::string large(3 << 20, 'x');  // more than a socket holds
  std::thread thread([&] {
    EXPECT_TRUE(sender.send(7, large));
    EXPECT_TRUE(sender.send(255, ""));
  });
  const auto first = receiver.receive(), second = receiver.receive();
  thread.join();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->kind, 7);
  EXPECT_EQ(first->bytes, large);
  EXPECT_EQ(second->kind, 255);
  EXPECT_EQ(second->bytes, "");
}

TEST(Frames, EndWithTheOtherSideEvenWithinAFrame) {
  auto [a, b] = socket_pair();
  FrameSocket receiver(std::move(b));
  const uint64_t head[] = {100, 1};
  EXPECT_TRUE(send_all(a.number(), head, sizeof head));
  EXPECT_TRUE(send_all(a.number(), "a part", 6));
  a = Socket();
  EXPECT_FALSE(receiver.receive());
  EXPECT_FALSE(receiver.send(1, "nobody is there"));
}

// One that stops in the middle of a frame, too.
TEST(Frames, WhoWaitsForOneAsksForTrouble) {
  for (const std::string sent : {"", "a part"}) {
    auto [a, b] = socket_pair();
    int asked = 0;
    FrameSocket receiver(std::move(b), FrameSocket::kMost,
                         [&] { return ++asked == 3 ? "nothing comes" : ""; });
    const uint64_t whole[] = {2, 7}, part[] = {100, 1};
    EXPECT_TRUE(send_all(a.number(), whole, sizeof whole));
    EXPECT_TRUE(send_all(a.number(), "ab", 2));
    EXPECT_EQ(receiver.receive()->bytes, "ab");
    EXPECT_EQ(asked, 0);
    if (!sent.empty()) {
      EXPECT_TRUE(send_all(a.number(), part, sizeof part));
      EXPECT_TRUE(send_all(a.number(), sent.data(), sent.size()));
    }
    EXPECT_THROW(receiver.receive(), Error);
    EXPECT_EQ(asked, 3);
  }
}

TEST(FrameSender, NeverWaitsForTheOtherEnd) {
  auto [a, b] = socket_pair();
  const std::string large(3 << 20, 'x');  // more than a socket holds
  FrameSocket receiver(std::move(b));
  FrameSender sender(std::make_shared<FrameSocket>(std::move(a)));
  for (uint8_t kind = 0; kind < 4; ++kind) sender.post(kind, large);  // nobody receives yet
  for (uint8_t kind = 0; kind < 4; ++kind) {
    const auto frame = receiver.receive();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, kind);
    EXPECT_EQ(frame->bytes, large);
  }
  sender.post(9, large);  // is on its way when the sender ends, which waits for nobody either
}

TEST(Frames, LongerThanAnyCanBeAreRefused) {
  auto [a, b] = socket_pair();
  FrameSocket receiver(std::move(b), 1000);
  const uint64_t exact[] = {1000, 1}, long_one[] = {1001, 1};
  EXPECT_TRUE(send_all(a.number(), exact, sizeof exact));
  EXPECT_TRUE(send_all(a.number(), std::string(1000, 'x').data(), 1000));
  EXPECT_EQ(receiver.receive()->bytes.size(), 1000u);
  EXPECT_TRUE(send_all(a.number(), long_one, sizeof long_one));
  EXPECT_THROW(receiver.receive(), Error);
}

// What a program that is started says over the first of its sockets.
std::string said_by(const std::string& script, const Socket& its, Socket& mine,
                    std::vector<int> sockets) {
  const std::string command[] = {"/bin/bash", "-c", script, "bash", std::to_string(its.number())};
  const pid_t process = start({.command = command, .sockets = sockets});
  std::string said;
  char buffer[256];
  int status = -1;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  ::shutdown(its.number(), SHUT_WR);
  for (ssize_t n; (n = ::recv(mine.number(), buffer, sizeof buffer, 0)) > 0;)
    said.append(buffer, static_cast<size_t>(n));
  return said + std::to_string(WEXITSTATUS(status));
}

TEST(ChildProcess, HasTheSocketsThatItWasGivenAndNoOtherFile) {
  auto [mine, its] = socket_pair();
  auto [other, more] = socket_pair();
  const int leaked = ::dup(other.number());  // a file that programs would inherit
  const std::string is_open = fmt::format("[ -e /proc/$$/fd/{} ] && echo", more.number());
  const std::string none = fmt::format("[ -e /proc/$$/fd/{} ] || echo", leaked);
  const std::string script = is_open + " given >&$1; " + none + " none >&$1; exit 3";
  EXPECT_EQ(said_by(script, its, mine, {more.number(), its.number()}), "given\nnone\n3");
  auto [mine2, its2] = socket_pair();
  EXPECT_EQ(said_by(script, its2, mine2, {its2.number()}), "none\n3");  // the control
  ::close(leaked);
}

TEST(ChildProcess, ThatCannotBeRunEndsWith127) {
  const std::string command[] = {"/nowhere/at/all"};
  const pid_t process = start({.command = command});
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(WEXITSTATUS(status), 127);
}

}  // namespace
}  // namespace invar
