#include "millrace/http/server/request_head.h"

#include <gtest/gtest.h>

namespace millrace::http {
namespace {

int StatusOf(std::string_view head) {
  auto parsed = ParseRequestHead(head);
  return parsed ? 200 : parsed.error().status;
}

TEST(RequestHead, TakesAWellFormedHeadApart) {
  auto head = ParseRequestHead("PUT /a%20b?x=1&y HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nX-Two:  a b \r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->method, "PUT");
  EXPECT_EQ(head->target, "/a%20b?x=1&y");
  EXPECT_EQ(head->path(), "/a%20b");
  EXPECT_EQ(head->query(), "x=1&y");
  EXPECT_EQ(head->content_length, 12u);
  EXPECT_FALSE(head->chunked);
  EXPECT_TRUE(head->keep_alive);
  EXPECT_EQ(head->headers.Get("x-two"), "a b");
}

TEST(RequestHead, AbsoluteFormBecomesOriginForm) {
  auto head = ParseRequestHead("GET http://h:80?x HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->target, "/?x");
  EXPECT_EQ(ParseRequestHead("GET http://h/p/q?x HTTP/1.1\r\nHost: h\r\n\r\n")->target, "/p/q?x");
}

TEST(RequestHead, ConnectionOptions) {
  EXPECT_FALSE(ParseRequestHead("GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n")->keep_alive);
  EXPECT_FALSE(ParseRequestHead("GET / HTTP/1.0\r\n\r\n")->keep_alive);
  EXPECT_TRUE(ParseRequestHead("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")->keep_alive);
  EXPECT_TRUE(ParseRequestHead("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n")
                  ->expect_continue);
}

TEST(RequestHead, RefusesWhatTwoParsersCouldReadDifferently) {
  const std::string_view bad[] = {
      "GET / HTTP/1.1\nHost: h\n\n",                                                  // bare LF
      "GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n",                                 // bare CR
      "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",                              // folding
      "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n",                                   // blank before the colon
      "GET / HTTP/1.1\r\nHost: h\r\nA\r\n\r\n",                                       // no colon
      "GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n",                                     // no name
      "GET / HTTP/1.1\r\n\r\n",                                                       // no Host
      "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",                                 // two
      "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",                                           // two blanks
      "GET / x HTTP/1.1\r\nHost: h\r\n\r\n",                                          // blank in the target
      "GET x HTTP/1.1\r\nHost: h\r\n\r\n",                                            // not a path
      "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",                                        // control character
      "G(T / HTTP/1.1\r\nHost: h\r\n\r\n",                                            // method
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",  // repeated
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\n",                    // list
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\n",                      // sign
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\n",                     // base
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",                         // empty
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",    // overflow
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
      "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
  };
  for (std::string_view head : bad) EXPECT_EQ(StatusOf(head), 400) << head;
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), 501);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
            501);
  EXPECT_EQ(StatusOf("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 505);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n"), 417);
  EXPECT_EQ(StatusOf(std::string("GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n", 35)), 400);
}

TEST(RequestHead, ChunkSizes) {
  EXPECT_EQ(ParseChunkSize("0"), 0u);
  EXPECT_EQ(ParseChunkSize("1aF"), 0x1afu);
  EXPECT_EQ(ParseChunkSize("10;name=value"), 16u);
  for (std::string_view bad : {"", "g", "0x10", "-1", " 1", "1 2", "1;\x01", "1234567890abcdef"}) {
    EXPECT_FALSE(ParseChunkSize(bad)) << bad;
  }
}

}  // namespace
}  // namespace millrace::http
