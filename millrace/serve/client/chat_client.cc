#include "millrace/serve/client/chat_client.h"

#include <algorithm>
#include <utility>

#include "millrace/base/harmless_text.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/serve/client/event_stream.h"

namespace millrace::serve {
namespace {

constexpr std::uint64_t kMaxAnswerBytes = 1024 * kMiB;
constexpr std::uint64_t kMaxErrorBytes = 64 * kKiB;
/// A model on a CPU may read a long prompt for minutes, and then say a word in seconds.
constexpr auto kPatience = std::chrono::hours(1);
constexpr JsonLimits kEventLimits{.depth = 32, .bytes = EventStream::kMaxEventBytes, .values = 64 * 1024};

std::string BaseUrl(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

Code CodeOf(int status) {
  if (status == 401 || status == 403) return Code::kPermissionDenied;
  if (status == 404) return Code::kNotFound;
  if (status == 429) return Code::kThrottled;
  return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
}

/// The server's words go to terminals.
std::string MessageOf(const Json& body) {
  const Json* error = JsonFind(body, "error");
  if (error == nullptr) return "";
  return HarmlessText(error->is_string() ? error->get<std::string>() : JsonString(*error, "message").value_or(""));
}

/// Takes the events of an answer as they come.
class AnswerSink final : public http::BodySink {
 public:
  AnswerSink(std::function<void(std::string_view)> on_text, TimePoint began)
      : on_text_(std::move(on_text)), began_(began) {}

  Status Take(std::uint64_t, ByteSpan bytes) override {
    stream_.Add(AsText(bytes));
    while (true) {
      const auto data = MR_TRY(stream_.Next());
      if (!data) return {};
      if (*data == "[DONE]") {
        done_ = true;
      } else {
        MR_TRY(TakeEvent(MR_TRY(ParseJson(*data, "an event of the answer", kEventLimits))));
      }
    }
  }

  bool done() const { return done_; }
  ChatAnswer answer;

 private:
  Status TakeEvent(const Json& event) {
    if (std::string message = MessageOf(event); !message.empty()) return Fail(Code::kUnavailable, "{}", message);
    if (const Json* usage = JsonFind(event, "usage"); usage != nullptr && usage->is_object()) {
      answer.usage =
          ChatUsage{JsonInt(*usage, "prompt_tokens").value_or(0), JsonInt(*usage, "completion_tokens").value_or(0)};
    }
    const Json* choices = JsonFind(event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return {};
    const Json& choice = choices->front();
    const Json* delta = JsonFind(choice, "delta");
    const Json* text = delta != nullptr ? JsonFind(*delta, "content") : JsonFind(choice, "text");
    if (text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty()) {
      if (answer.first_token == Duration()) answer.first_token = SystemClock().Now() - began_;
      on_text_(text->get_ref<const std::string&>());
    }
    if (auto finish = JsonString(choice, "finish_reason")) answer.finish_reason = *std::move(finish);
    return {};
  }

  const std::function<void(std::string_view)> on_text_;
  const TimePoint began_;
  EventStream stream_;
  bool done_ = false;
};

}  // namespace

ChatClient::ChatClient(Options options)
    : options_{.url = BaseUrl(std::move(options.url)),
               .key = std::move(options.key),
               .ca_bundle = std::move(options.ca_bundle),
               .proxies = std::move(options.proxies)},
      client_({.max_connections = 2,
               .loops = 1,
               .timeouts = {.first_byte = kPatience, .stall = kPatience},
               .ca_bundle = options_.ca_bundle,
               .proxies = options_.proxies}) {}

http::Request ChatClient::MakeRequest(std::string method, std::string_view path) const {
  http::Request request{.method = std::move(method), .url = fmt::format("{}{}", options_.url, path)};
  if (!options_.key.empty()) request.headers.Set("Authorization", "Bearer " + options_.key);
  return request;
}

Error ChatClient::Refused(const http::Response& response) const {
  if (response.status == 401) {
    return {Code::kPermissionDenied,
            fmt::format("{} {}: give --api-key-file, a file with a key of the server", options_.url,
                        options_.key.empty() ? "wants a key" : "does not know the key")};
  }
  std::string message;
  if (auto body = ParseJson(response.body, "the answer", kEventLimits)) message = MessageOf(*body);
  if (message.empty()) message = fmt::format("the server answered {}", response.status);
  return {CodeOf(response.status), message};
}

Result<std::vector<ServedModel>> ChatClient::Models(http::Call call) {
  const http::Response response =
      MR_TRY(client_.Send(MakeRequest("GET", "/v1/models"), {.max_collected = kMiB}, std::move(call)));
  if (response.status == 404) {
    return Fail(Code::kNotFound,
                "{} has no /v1/models: no model is served there; give the URL that `millrace serve` prints",
                options_.url);
  }
  if (response.status != 200) return Fail(Refused(response));
  const Json body = MR_TRY(ParseJson(response.body, "the list of models", kEventLimits));
  std::vector<ServedModel> models;
  const Json* data = JsonFind(body, "data");
  if (data == nullptr || !data->is_array()) return Fail(Code::kCorrupt, "{} sent no list of models", options_.url);
  for (const Json& model : *data) {
    models.push_back({MR_TRY(JsonString(model, "id")), static_cast<int>(std::clamp<std::int64_t>(
                                                           JsonInt(model, "max_model_len").value_or(0), 0, 1 << 30))});
  }
  return models;
}

Result<ChatAnswer> ChatClient::Ask(const Conversation::Request& request, std::function<void(std::string_view)> on_text,
                                   http::Call call) {
  const TimePoint began = SystemClock().Now();
  AnswerSink sink(std::move(on_text), began);
  const std::string body = DumpJson(request.body);
  http::Request post = MakeRequest("POST", request.path);
  post.headers.Set("Content-Type", "application/json");
  post.body = AsBytes(body);
  const http::Response response = MR_TRY(
      client_.Send(std::move(post), {.sink = &sink, .sink_limit = kMaxAnswerBytes, .max_collected = kMaxErrorBytes},
                   std::move(call)));
  if (response.status != 200) return Fail(Refused(response));
  // A stream that ends without its end mark was cut, even if the connection was closed in order.
  if (!sink.done()) return Fail(Code::kUnavailable, "the connection broke before the answer was complete");
  sink.answer.total = SystemClock().Now() - began;
  return sink.answer;
}

}  // namespace millrace::serve
