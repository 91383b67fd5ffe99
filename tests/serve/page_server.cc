// Serves the chat page alone, for tests that put a server of their own behind it. Prints its address; ends when its
// standard input does.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "millrace/http/server/server.h"
#include "millrace/serve/page/chat_page.h"

int main() {
  const millrace::serve::ChatPage page;
  auto server = millrace::http::Server::Start(
      {}, [&page](auto& request, auto& response) { (void)page.Answer(request, response); });
  if (!server) {
    fmt::print(stderr, "page_server: {}\n", server.error().ToString());
    return 1;
  }
  fmt::print("{}\n", (*server)->address());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  (*server)->Stop({});
}
