// Any body of a request is either an error that names a sentence, or a request within its limits.
#include <cstdlib>

#include "millrace/base/json.h"
#include "millrace/serve/calls/forced_call.h"
#include "millrace/serve/protocol/embedding.h"
#include "millrace/serve/protocol/messages.h"
#include "millrace/serve/protocol/request.h"
#include "millrace/serve/protocol/responses.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::serve;
  const auto body = ParseJson({reinterpret_cast<const char*>(data), size}, "fuzz", {.depth = 32, .values = 1 << 16});
  if (!body) return 0;
  const RequestLimits limits;
  const auto check = [&](const RequestOptions& options) {
    if (options.made_texts() > limits.max_texts || options.stops.size() > 16) std::abort();
  };
  if (auto request = ParseCompletion(*body, limits)) check(request->options);
  if (auto request = ParseEmbedding(*body, limits); request && request->inputs.empty()) std::abort();
  if (auto request = ParseInvocation(*body, limits); !request && request.error().message.empty()) std::abort();
  if (auto request = ParseMessages(*body, limits)) check(request->options);
  if (auto request = ParseResponses(*body, limits)) check(request->options);
  const auto chat = ParseChat(*body, limits);
  if (!chat) return 0;
  check(chat->options);
  if (chat->tool_choice.is_forced()) (void)CallSchema(chat->tools, chat->tool_choice, ToolSyntax::kHermes);
  return 0;
}
