#include "millrace/serve/client/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::serve {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> EventsOf(std::string_view bytes, std::size_t piece) {
  EventStream stream;
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    stream.Add(bytes.substr(at, piece));
    while (true) {
      auto event = stream.Next();
      EXPECT_TRUE(event);
      if (!event || !*event) break;
      events.push_back(**event);
    }
  }
  return events;
}

TEST(EventStream, GivesTheSameEventsHoweverTheBytesAreCut) {
  constexpr std::string_view kBytes =
      ": a comment\n\ndata: one\n\ndata:two\ndata: three\n\nevent: x\nid: 7\ndata: four\r\n\r\ndata: five\r\rdata:\n\n";
  for (std::size_t piece = 1; piece <= kBytes.size(); ++piece) {
    EXPECT_THAT(EventsOf(kBytes, piece), ElementsAre("one", "two\nthree", "four", "five", "")) << piece;
  }
}

TEST(EventStream, AnUnfinishedEventIsNone) { EXPECT_THAT(EventsOf("data: one\n\ndata: two\n", 5), ElementsAre("one")); }

TEST(EventStream, RefusesEventsWithoutEnd) {
  EventStream stream;
  const std::string part(kMiB, 'x');
  stream.Add("data: ");
  for (int i = 0; i < 15; ++i) {
    stream.Add(part);
    ASSERT_TRUE(stream.Next());
  }
  stream.Add(part);
  EXPECT_EQ(stream.Next().error().code(), Code::kCorrupt);
}

TEST(EventStream, RefusesEventsOfEndlesslyManyLines) {
  EventStream stream;
  const std::string part = "data: " + std::string(kMiB, 'x') + "\n";
  Result<std::optional<std::string>> next = std::optional<std::string>();
  for (int i = 0; i < 17 && next; ++i) {
    stream.Add(part);
    next = stream.Next();
  }
  EXPECT_FALSE(next);
}

}  // namespace
}  // namespace millrace::serve
