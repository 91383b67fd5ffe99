#include "millrace/serve/completion.h"

#include <array>
#include <cmath>
#include <limits>

#include "millrace/base/text.h"

namespace millrace::serve {
namespace {

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

/// Reads members of a request's object, and remembers the first thing that is wrong with it.
class BodyReader {
 public:
  explicit BodyReader(const Json& body) : body_(body) {}

  bool good() const { return !error_; }
  ApiError error() const { return *error_; }
  void Refuse(std::string_view param, std::string message, std::string code = "") {
    if (!error_) error_ = ApiError{.message = std::move(message), .param = std::string(param), .code = std::move(code)};
  }

  /// Nothing when absent or null.
  const Json* Find(std::string_view key) {
    known_.push_back(key);
    const Json* member = JsonFind(body_, key);
    return member == nullptr || member->is_null() ? nullptr : member;
  }

  void Flag(std::string_view key, bool& into) {
    const Json* member = Find(key);
    if (member == nullptr) return;
    if (!member->is_boolean()) return Refuse(key, fmt::format("{} should be true or false", key));
    into = member->get<bool>();
  }
  void Text(std::string_view key, std::string& into) {
    const Json* member = Find(key);
    if (member == nullptr) return;
    if (!member->is_string()) return Refuse(key, fmt::format("{} should be a string", key));
    into = member->get<std::string>();
  }
  std::optional<std::int64_t> Integer(std::string_view key, std::int64_t least, std::int64_t most) {
    const Json* member = Find(key);
    if (member == nullptr) return std::nullopt;
    if (!member->is_number_integer() || (member->is_number_unsigned() && member->get<std::uint64_t>() > kMost)) {
      Refuse(key, fmt::format("{} should be a whole number", key));
      return std::nullopt;
    }
    auto value = member->get<std::int64_t>();
    if (value < least || value > most)
      Refuse(key, fmt::format("{} should be from {} to {}, not {}", key, least, most, value));
    return value;
  }
  void Number(std::string_view key, double& into, double least, double most) {
    const Json* member = Find(key);
    if (member == nullptr) return;
    if (!member->is_number()) return Refuse(key, fmt::format("{} should be a number", key));
    double value = member->get<double>();
    if (!(value >= least && value <= most)) {
      return Refuse(key, fmt::format("{} should be from {} to {}, not {}", key, least, most, value));
    }
    into = value;
  }
  /// A member of the interface that must be absent, or have a value that changes nothing.
  void Neutral(std::string_view key, const Json& value) {
    const Json* member = Find(key);
    if (member == nullptr || *member == value) return;
    Refuse(key, fmt::format("{} is not supported by this server; leave it out", key), "unsupported_parameter");
  }
  void RejectUnknown() {
    for (const auto& [key, value] : body_.items()) {
      if (error_) return;
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        Refuse(key, UnknownName("parameter", key, known_));
    }
  }

 private:
  static constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const Json& body_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

std::optional<std::vector<TokenId>> TokenIds(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<TokenId>::max()) return std::nullopt;
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

/// A string, a list of token ids, or a list of either.
void ReadPrompts(BodyReader& reader, std::string_view key, const RequestLimits& limits, std::vector<Prompt>& prompts) {
  const Json* member = reader.Find(key);
  if (member == nullptr) return reader.Refuse(key, fmt::format("{} is required", key));
  auto add = [&](const Json& one) {
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
      return true;
    }
    auto ids = one.is_array() && !one.empty() ? TokenIds(one) : std::nullopt;
    if (!ids) return false;
    prompts.emplace_back(*std::move(ids));
    return true;
  };
  constexpr std::string_view kShape = "should be a string, a list of token ids, or a list of these";
  bool one = member->is_string() || (member->is_array() && !member->empty() && member->front().is_number());
  if (one ? !add(*member) : !member->is_array() || member->empty()) {
    return reader.Refuse(key, fmt::format("{} {}", key, kShape));
  }
  if (one) return;
  if (member->size() > static_cast<std::size_t>(limits.max_prompts)) {
    return reader.Refuse(
        key, fmt::format("{} has {} entries; this server takes {}", key, member->size(), limits.max_prompts));
  }
  for (const Json& entry : *member) {
    if (!add(entry)) return reader.Refuse(key, fmt::format("{} {}", key, kShape));
  }
}

void ReadStops(BodyReader& reader, const RequestLimits& limits, std::vector<std::string>& stops) {
  const Json* member = reader.Find("stop");
  if (member == nullptr) return;
  Json list = member->is_array() ? *member : Json::array({*member});
  if (list.size() > static_cast<std::size_t>(limits.max_stops)) {
    return reader.Refuse("stop",
                         fmt::format("stop has {} entries; this server takes {}", list.size(), limits.max_stops));
  }
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty() ||
        entry.get_ref<const std::string&>().size() > limits.max_stop_bytes) {
      return reader.Refuse(
          "stop", fmt::format("stop should be a string of 1 to {} bytes, or a list of such", limits.max_stop_bytes));
    }
    stops.push_back(entry.get<std::string>());
  }
}

void ReadSampling(BodyReader& reader, CompletionRequest& request) {
  reader.Number("temperature", request.sampling.temperature, 0, 100);
  reader.Number("top_p", request.sampling.top_p, 1e-6, 1);
  if (auto top_k = reader.Integer("top_k", -1, 1 << 30))
    request.sampling.top_k = static_cast<int>(std::max<std::int64_t>(*top_k, 0));
  if (auto seed =
          reader.Integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    request.sampling.seed = static_cast<std::uint64_t>(*seed);
    request.seed_given = true;
  }
}

void ReadMaxTokens(BodyReader& reader, std::string_view key, const RequestLimits& limits, CompletionRequest& request) {
  if (auto tokens = reader.Integer(key, 1, limits.max_tokens)) request.max_tokens = static_cast<int>(*tokens);
}

Parsed<CompletionRequest> ParseInputs(const Json& body, const RequestLimits& limits) {
  CompletionRequest request;
  BodyReader reader(body);
  ReadPrompts(reader, "inputs", limits, request.prompts);
  const Json* parameters = reader.Find("parameters");
  reader.Neutral("stream", false);
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  if (parameters == nullptr) return request;
  if (!parameters->is_object())
    return std::unexpected(ApiError{.message = "parameters should be an object", .param = "parameters"});

  BodyReader inner(*parameters);
  ReadMaxTokens(inner, "max_new_tokens", limits, request);
  ReadSampling(inner, request);
  ReadStops(inner, limits, request.stops);
  inner.Flag("return_full_text", request.echo);
  bool sample = true;
  inner.Flag("do_sample", sample);
  if (!sample) request.sampling.temperature = 0;
  inner.Neutral("repetition_penalty", 1.0);
  inner.Neutral("details", false);
  inner.RejectUnknown();
  if (!inner.good()) return std::unexpected(inner.error());
  return request;
}

}  // namespace

Json ApiError::ToJson() const {
  return {{"error", {{"message", message}, {"type", type}, {"param", OrNull(param)}, {"code", OrNull(code)}}}};
}

ApiError ToApiError(const Error& error) {
  ApiError api{
      .status = ToHttpStatus(error.code()), .message = error.ToString(), .code = std::string(CodeName(error.code()))};
  if (error.code() == Code::kThrottled) {
    api.status = 429;
    api.type = "rate_limit_error";
  } else if (api.status >= 500) {
    api.type = "server_error";
  }
  return api;
}

Parsed<CompletionRequest> ParseCompletion(const Json& body, const RequestLimits& limits) {
  if (!body.is_object()) return std::unexpected(ApiError{.message = "the body should be a JSON object"});
  CompletionRequest request;
  BodyReader reader(body);
  reader.Text("model", request.model);
  ReadPrompts(reader, "prompt", limits, request.prompts);
  ReadMaxTokens(reader, "max_tokens", limits, request);
  ReadSampling(reader, request);
  ReadStops(reader, limits, request.stops);
  reader.Flag("echo", request.echo);
  reader.Flag("stream", request.stream);
  if (const Json* options = reader.Find("stream_options")) {
    BodyReader inner(*options);
    inner.Flag("include_usage", request.include_usage);
    inner.RejectUnknown();
    if (!options->is_object() || !inner.good())
      reader.Refuse("stream_options", "stream_options should be {\"include_usage\": true or false}");
    if (!request.stream) reader.Refuse("stream_options", "stream_options needs \"stream\": true");
  }
  std::string user;
  reader.Text("user", user);
  reader.Neutral("n", 1);
  reader.Neutral("best_of", 1);
  reader.Neutral("logprobs", nullptr);
  reader.Neutral("frequency_penalty", 0);
  reader.Neutral("presence_penalty", 0);
  reader.Neutral("logit_bias", Json::object());
  reader.Neutral("suffix", "");
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  return request;
}

Parsed<Invocation> ParseInvocation(const Json& body, const RequestLimits& limits) {
  bool inputs = JsonFind(body, "inputs") != nullptr;
  auto request = inputs ? ParseInputs(body, limits) : ParseCompletion(body, limits);
  if (!request) return std::unexpected(std::move(request).error());
  return Invocation{*std::move(request), inputs};
}

Json Usage::ToJson() const {
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
}

Json Choice(std::size_t index, std::string_view text, std::string_view finish) {
  return {{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", OrNull(std::string(finish))}};
}

Json Answer(const AnswerHead& head, Json choices, const std::optional<Usage>& usage) {
  Json answer = {{"id", head.id}, {"object", "text_completion"}, {"created", head.created}, {"model", head.model}};
  answer["choices"] = std::move(choices);
  if (usage) answer["usage"] = usage->ToJson();
  return answer;
}

std::string ServerSentEvent(const Json& data) { return fmt::format("data: {}\n\n", DumpJson(data)); }

}  // namespace millrace::serve
