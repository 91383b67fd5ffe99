// A client of the chat interface of `millrace serve`, or of another server with OpenAI's interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/http/client/client.h"
#include "millrace/serve/client/conversation.h"

namespace millrace::serve {

struct ServedModel {
  std::string id;
  int context = 0;  ///< tokens; 0: the server does not say
};

struct ChatUsage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
};

/// The end of an answer: its reason, its time, and the answer's number of tokens. The text itself went to the caller.
struct ChatAnswer {
  std::string finish_reason;  ///< "stop", "length", …; empty if the answer broke off
  std::optional<ChatUsage> usage;
  Duration first_token{}, total{};  ///< from the request
};

/// Thread-safe, but for `on_text` of Ask.
class ChatClient {
 public:
  struct Options {
    std::string url;        ///< "http://127.0.0.1:8080", with or without "/v1"
    std::string key;        ///< empty: none
    std::string ca_bundle;  ///< see http::Client
    http::Proxies proxies;
  };
  explicit ChatClient(Options options);

  /// Errors: kPermissionDenied if the server wants a key or another one; kNotFound if it has no such interface; those
  /// of the client.
  Result<std::vector<ServedModel>> Models(http::Call call);

  /// Sends a request and gives each piece of the answer to `on_text`, on a thread of the client's. Blocks until the
  /// answer is complete. Errors: as the server names them, with the code of their status; kCancelled if the call
  /// stopped it; kUnavailable if the connection broke. What came before was given to `on_text`.
  Result<ChatAnswer> Ask(const Conversation::Request& request, std::function<void(std::string_view)> on_text,
                         http::Call call);

  const std::string& url() const { return options_.url; }

 private:
  http::Request MakeRequest(std::string method, std::string_view path) const;
  Error Refused(const http::Response& response) const;

  const Options options_;
  http::Client client_;
};

}  // namespace millrace::serve
