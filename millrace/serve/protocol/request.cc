#include "millrace/serve/protocol/request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "millrace/serve/protocol/body_reader.h"
#include "millrace/serve/protocol/prompts.h"

namespace millrace::serve {
namespace {

void ReadStops(BodyReader& reader, const RequestLimits& limits, std::vector<std::string>& stops,
               std::string_view key = "stop") {
  const Json* member = reader.Find(key);
  if (member == nullptr) return;
  Json list = member->is_array() ? *member : Json::array({*member});
  if (list.size() > static_cast<std::size_t>(limits.max_stops)) {
    return reader.Refuse(key,
                         fmt::format("{} has {} entries; this server takes {}", key, list.size(), limits.max_stops));
  }
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty() ||
        entry.get_ref<const std::string&>().size() > limits.max_stop_bytes) {
      return reader.Refuse(
          key, fmt::format("{} should be a string of 1 to {} bytes, or a list of such", key, limits.max_stop_bytes));
    }
    stops.push_back(entry.get<std::string>());
  }
}

/// {"token id": bias, …}
void ReadBias(BodyReader& reader, const RequestLimits& limits, SamplingOptions& sampling) {
  const Json* member = reader.Find("logit_bias");
  if (member == nullptr) return;
  constexpr std::string_view kShape = "logit_bias should map token ids to numbers from -100 to 100";
  if (!member->is_object()) return reader.Refuse("logit_bias", std::string(kShape));
  if (member->size() > limits.max_biases) {
    return reader.Refuse("logit_bias", fmt::format("logit_bias has {} entries; this server takes {}", member->size(),
                                                   limits.max_biases));
  }
  for (const auto& [key, value] : member->items()) {
    TokenId token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool is_id = error == std::errc() && end == key.data() + key.size() && token >= 0;
    if (!is_id || !value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      return reader.Refuse("logit_bias", std::string(kShape));
    }
    sampling.bias.emplace_back(token, value.get<double>());
  }
}

void ReadSampling(BodyReader& reader, const RequestLimits& limits, RequestOptions& options) {
  SamplingOptions& sampling = options.sampling;
  reader.Number("temperature", sampling.temperature, 0, 100);
  reader.Number("top_p", sampling.top_p, 1e-6, 1);
  reader.Number("min_p", sampling.min_p, 0, 1);
  reader.Number("typical_p", sampling.typical_p, 1e-6, 1);
  reader.Number("repetition_penalty", sampling.repetition_penalty, 0.01, 100);
  reader.Number("presence_penalty", sampling.presence_penalty, -100, 100);
  reader.Number("frequency_penalty", sampling.frequency_penalty, -100, 100);
  ReadBias(reader, limits, sampling);
  if (const auto top_k = reader.Integer("top_k", -1, 1 << 30))
    sampling.top_k = static_cast<int>(std::max<std::int64_t>(*top_k, 0));
  if (const auto seed =
          reader.Integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
    options.seed_given = true;
  }
}

/// Reads what ends a text beside stop strings, under the names of vLLM's clients.
void ReadEnds(BodyReader& reader, const RequestLimits& limits, RequestOptions& options) {
  reader.Flag("ignore_eos", options.ignores_ends);
  if (const auto least = reader.Integer("min_tokens", 0, limits.max_tokens)) {
    options.sampling.min_tokens = static_cast<int>(*least);
    if (*least > options.max_tokens.value_or(limits.max_tokens)) {
      reader.Refuse("min_tokens", fmt::format("min_tokens is {}, more than max_tokens", *least));
    }
  }
  const Json* ids = reader.Find("stop_token_ids");
  if (ids == nullptr) return;
  const auto is_token = [](const Json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<TokenId>::max();
  };
  const std::size_t most = static_cast<std::size_t>(limits.max_stops);
  if (!ids->is_array() || ids->size() > most || !std::all_of(ids->begin(), ids->end(), is_token)) {
    return reader.Refuse("stop_token_ids", fmt::format("stop_token_ids should be a list of up to {} token ids", most));
  }
  options.stop_tokens = ids->get<std::vector<TokenId>>();
}

/// Members of OpenAI's and vLLM's interfaces that change no text here.
void ReadNeutral(BodyReader& reader) {
  for (const char* key : {"user", "safety_identifier", "service_tier", "store", "metadata", "prompt_cache_key",
                          "prompt_cache_retention", "prompt_cache_options", "priority", "request_id"}) {
    reader.Ignore(key);
  }
  reader.Neutral("use_beam_search", false);
  reader.Neutral("length_penalty", 1);
  reader.Neutral("skip_special_tokens", true);
  reader.Neutral("include_stop_str_in_output", false);
}

/// Reads response_format, and the names under which vLLM's clients ask for other forms. At most one may be there.
void ReadForm(BodyReader& reader, TextForm& form) {
  constexpr std::size_t kMaxChoices = 1000;
  const auto take = [&](std::string_view key, TextForm::Kind kind) {
    if (form.kind != TextForm::Kind::kAny) reader.Refuse(key, "a request can want one form of its text, not two");
    form.kind = kind;
  };
  if (const Json* format = reader.Find("response_format")) {
    const Json* type = JsonFind(*format, "type");
    if (type != nullptr && *type == "json_object") {
      take("response_format", TextForm::Kind::kJsonObject);
    } else if (type != nullptr && *type == "json_schema") {
      const Json* named = JsonFind(*format, "json_schema");
      const Json* schema = named != nullptr ? JsonFind(*named, "schema") : nullptr;
      if (schema == nullptr) return reader.Refuse("response_format", "json_schema should have a \"schema\"");
      take("response_format", TextForm::Kind::kJsonSchema);
      form.schema = *schema;
    } else if (type == nullptr || *type != "text") {
      return reader.Refuse("response_format", "response_format's type should be text, json_object or json_schema");
    }
  }
  if (const Json* schema = reader.Find("guided_json")) {
    take("guided_json", TextForm::Kind::kJsonSchema);
    form.schema = *schema;
  }
  reader.Text("guided_regex", form.regex);
  if (!form.regex.empty()) take("guided_regex", TextForm::Kind::kRegex);
  if (const Json* choices = reader.Find("guided_choice")) {
    take("guided_choice", TextForm::Kind::kChoice);
    const auto is_text = [](const Json& choice) {
      return choice.is_string() && !choice.get_ref<const std::string&>().empty();
    };
    if (!choices->is_array() || choices->empty() || choices->size() > kMaxChoices ||
        !std::all_of(choices->begin(), choices->end(), is_text)) {
      return reader.Refuse("guided_choice",
                           fmt::format("guided_choice should be a list of 1 to {} strings", kMaxChoices));
    }
    form.choices = choices->get<std::vector<std::string>>();
  }
}

/// What both of OpenAI's forms have, but for the number of tokens and log-probabilities.
void ReadOptions(BodyReader& reader, const RequestLimits& limits, RequestOptions& options) {
  reader.Text("model", options.model);
  ReadSampling(reader, limits, options);
  ReadStops(reader, limits, options.stops);
  ReadEnds(reader, limits, options);
  if (const auto texts = reader.Integer("n", 1, limits.max_texts)) options.texts = static_cast<int>(*texts);
  reader.Flag("stream", options.stream);
  if (const Json* stream_options = reader.Find("stream_options")) {
    BodyReader inner(*stream_options);
    inner.Flag("include_usage", options.include_usage);
    inner.Ignore("include_obfuscation");  // padding of the events
    inner.RejectUnknown();
    if (!stream_options->is_object() || !inner.good())
      reader.Refuse("stream_options", "stream_options should be {\"include_usage\": true or false}");
    if (!options.stream) reader.Refuse("stream_options", "stream_options needs \"stream\": true");
  }
  ReadForm(reader, options.form);
  ReadNeutral(reader);
}

void ReadMaxTokens(BodyReader& reader, std::string_view key, const RequestLimits& limits, RequestOptions& options,
                   int least = 1) {
  if (auto tokens = reader.Integer(key, least, limits.max_tokens)) options.max_tokens = static_cast<int>(*tokens);
}

/// The texts with the highest mean log-probability of a token are the answer.
void ReadBestOf(BodyReader& reader, const RequestLimits& limits, RequestOptions& options) {
  const auto best_of = reader.Integer("best_of", 1, limits.max_texts);
  if (!best_of) return;
  options.best_of = static_cast<int>(*best_of);
  if (options.best_of < options.texts) {
    reader.Refuse("best_of", fmt::format("best_of is {}, but n wants {} texts", options.best_of, options.texts));
  }
  if (options.best_of > options.texts && options.stream) {
    reader.Refuse("best_of", "best_of needs whole texts, so it goes without \"stream\"");
  }
}

Parsed<InputsRequest> ParseInputs(const Json& body, const RequestLimits& limits) {
  CompletionRequest request;
  BodyReader reader(body);
  ReadPrompts(reader, "inputs", limits.max_prompts, request.prompts);
  const Json* parameters = reader.Find("parameters");
  reader.Neutral("stream", false);
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  if (parameters == nullptr) return InputsRequest{std::move(request)};
  if (!parameters->is_object())
    return std::unexpected(ApiError{.message = "parameters should be an object", .param = "parameters"});

  BodyReader inner(*parameters);
  ReadMaxTokens(inner, "max_new_tokens", limits, request.options);
  ReadSampling(inner, limits, request.options);
  ReadStops(inner, limits, request.options.stops);
  ReadStops(inner, limits, request.options.stops, "stop_sequences");
  inner.Flag("return_full_text", request.echo);
  // Without do_sample, a parameter of sampling asks for it, as in TGI.
  bool sample = false;
  for (const char* key : {"temperature", "top_k", "top_p", "typical_p", "min_p"}) {
    sample = sample || inner.Find(key) != nullptr;
  }
  inner.Flag("do_sample", sample);
  if (!sample) request.options.sampling.temperature = 0;
  if (const auto texts = inner.Integer("num_return_sequences", 1, limits.max_texts)) {
    request.options.texts = static_cast<int>(*texts);
  }
  inner.Neutral("details", false);
  inner.Neutral("decoder_input_details", false);
  inner.Neutral("watermark", false);
  inner.Neutral("best_of", 1);
  inner.RejectUnknown();
  if (!inner.good()) return std::unexpected(inner.error());
  return InputsRequest{std::move(request)};
}

/// Returns the text of a message's content: a string, or a list of parts that are texts or refusals.
std::optional<std::string> ContentText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const Json* type = JsonFind(part, "type");
    if (type == nullptr || (*type != "text" && *type != "refusal")) return std::nullopt;
    const Json* piece = JsonFind(part, type->get_ref<const std::string&>());
    if (piece == nullptr || !piece->is_string()) return std::nullopt;
    text += piece->get<std::string>();
  }
  return text;
}

/// Templates want the arguments of a tool call as an object; OpenAI's clients send them as its text.
void OpenArguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    const auto arguments = call["function"].find("arguments");
    if (arguments == call["function"].end() || !arguments->is_string()) continue;
    auto parsed = ParseJson(arguments->get_ref<const std::string&>(), "the arguments of a tool call");
    if (parsed && parsed->is_object()) *arguments = *std::move(parsed);
  }
}

/// Writes the older form of a call and of its result as today's, which templates know.
void RenewFunctionCall(Json& message) {
  if (message["role"] == "function") message["role"] = "tool";
  const auto call = message.find("function_call");
  if (call == message.end()) return;
  if (call->is_object() && !message.contains("tool_calls")) {
    message["tool_calls"] = Json::array({{{"id", "call_0"}, {"type", "function"}, {"function", *call}}});
  }
  message.erase("function_call");
}

/// An answer without words is an empty text, or a refusal.
void FillContent(Json& message) {
  if (message["role"] != "assistant" || message.contains("tool_calls")) return;
  const Json* refusal = JsonFind(message, "refusal");
  message["content"] = refusal != nullptr && refusal->is_string() ? *refusal : Json("");
}

void ReadMessages(BodyReader& reader, Json& messages) {
  const Json* member = reader.Find("messages");
  if (member == nullptr) return reader.Refuse("messages", "messages is required");
  if (!member->is_array() || member->empty()) {
    return reader.Refuse("messages", "messages should be a list of messages, and not empty");
  }
  for (std::size_t i = 0; i < member->size(); ++i) {
    Json message = (*member)[i];
    const std::string where = fmt::format("messages[{}]", i);
    const Json* role = JsonFind(message, "role");
    if (role == nullptr || !role->is_string()) {
      return reader.Refuse(where, fmt::format("{} should be an object with a role that is a string", where));
    }
    RenewFunctionCall(message);
    if (JsonFind(message, "content") == nullptr || message["content"].is_null()) FillContent(message);
    const auto content = message.find("content");
    if (content != message.end() && !content->is_null()) {
      auto text = ContentText(*content);
      if (!text) {
        return reader.Refuse(where, fmt::format("{}: content should be a string or a list of text parts; this server "
                                                "takes no images, sounds or files",
                                                where));
      }
      *content = *std::move(text);
    } else if (!message.contains("tool_calls")) {
      return reader.Refuse(where, fmt::format("{} has no content", where));
    }
    OpenArguments(message);
    messages.push_back(std::move(message));
  }
}

/// Returns the name of a tool's function; nothing if it has none.
std::optional<std::string> FunctionName(const Json& tool) {
  const Json* function = JsonFind(tool, "function");
  const Json* name = function != nullptr ? JsonFind(*function, "name") : nullptr;
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty()) return std::nullopt;
  return name->get<std::string>();
}

ToolChoice ReadToolChoice(BodyReader& reader, const Json& tools) {
  constexpr std::string_view kKey = "tool_choice";
  using Kind = ToolChoice::Kind;
  ToolChoice choice{.kind = tools.empty() ? Kind::kNone : Kind::kAuto};
  for (const Json& tool : tools) {
    if (auto name = FunctionName(tool)) choice.names.push_back(*std::move(name));
  }
  reader.Flag("parallel_tool_calls", choice.parallel);
  const Json* member = reader.Find(kKey);
  if (member == nullptr) return choice;
  if (*member == "none") {
    choice.kind = Kind::kNone;
  } else if (*member == "required" || member->is_object()) {
    choice.kind = *member == "required" ? Kind::kRequired : Kind::kNamed;
    if (tools.empty()) reader.Refuse(kKey, "tool_choice wants a call, but there are no tools");
  } else if (*member != "auto") {
    reader.Refuse(kKey, R"(tool_choice should be "none", "auto", "required" or a function's name as an object)");
  }
  if (choice.kind != Kind::kNamed) return choice;
  choice.name = FunctionName(*member).value_or("");
  if (std::ranges::find(choice.names, choice.name) == choice.names.end()) {
    reader.Refuse(kKey,
                  fmt::format("tool_choice names the function \"{}\", which is not among the tools", choice.name));
  }
  return choice;
}

/// Reads the tools, which go to the template, and what a text must be if it must be a call.
void ReadTools(BodyReader& reader, ChatRequest& request) {
  const Json* member = reader.Find("tools");
  Json tools = Json::array();
  if (member != nullptr) {
    if (!member->is_array()) return reader.Refuse("tools", "tools should be a list");
    tools = *member;
  }
  request.tool_choice = ReadToolChoice(reader, tools);
  if (request.tool_choice.kind == ToolChoice::Kind::kNone) return;
  if (request.tool_choice.is_forced() && request.tool_choice.names.size() < tools.size()) {
    reader.Refuse("tools", R"(each of the tools should be {"type": "function", "function": {"name": …}})");
  }
  request.tools = std::move(tools);
  if (request.tool_choice.is_forced() && request.options.form.kind != TextForm::Kind::kAny) {
    reader.Refuse("tool_choice", "a request can want a call or a form of its text, not both");
  }
}

}  // namespace

Parsed<CompletionRequest> ParseCompletion(const Json& body, const RequestLimits& limits) {
  if (!body.is_object()) return std::unexpected(ApiError{.message = "the body should be a JSON object"});
  CompletionRequest request;
  BodyReader reader(body);
  ReadPrompts(reader, "prompt", limits.max_prompts, request.prompts);
  ReadMaxTokens(reader, "max_tokens", limits, request.options, 0);
  ReadOptions(reader, limits, request.options);
  if (const auto count = reader.Integer("logprobs", 0, limits.max_logprobs)) {
    request.options.sampling.logprobs = static_cast<int>(*count);
  }
  reader.Flag("echo", request.echo);
  reader.Flag("split_special_tokens", request.splits_specials);
  reader.Flag("add_special_tokens", request.adds_bos);
  ReadBestOf(reader, limits, request.options);
  reader.Neutral("suffix", "");
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  return request;
}

Parsed<ChatRequest> ParseChat(const Json& body, const RequestLimits& limits) {
  if (!body.is_object()) return std::unexpected(ApiError{.message = "the body should be a JSON object"});
  ChatRequest request;
  BodyReader reader(body);
  ReadMessages(reader, request.messages);
  ReadMaxTokens(reader, "max_tokens", limits, request.options);
  ReadMaxTokens(reader, "max_completion_tokens", limits, request.options);
  ReadOptions(reader, limits, request.options);
  bool logprobs = false;
  reader.Flag("logprobs", logprobs);
  const auto likeliest = reader.Integer("top_logprobs", 0, limits.max_logprobs);
  if (logprobs) request.options.sampling.logprobs = static_cast<int>(likeliest.value_or(0));
  if (likeliest && !logprobs) reader.Refuse("top_logprobs", "top_logprobs needs \"logprobs\": true");
  ReadTools(reader, request);
  reader.Flag("continue_final_message", request.continues_last);
  const bool told = reader.Find("add_generation_prompt") != nullptr;
  request.add_generation_prompt = !request.continues_last;
  reader.Flag("add_generation_prompt", request.add_generation_prompt);
  if (told && request.add_generation_prompt && request.continues_last) {
    reader.Refuse("add_generation_prompt", "an answer goes on with the last message or begins a new one, not both");
  }
  if (const Json* variables = reader.Find("chat_template_kwargs")) {
    if (!variables->is_object()) reader.Refuse("chat_template_kwargs", "chat_template_kwargs should be an object");
    request.variables = *variables;
  }
  // Templates of models that reason by degrees read it.
  if (const Json* effort = reader.Find("reasoning_effort"); effort != nullptr && effort->is_string()) {
    request.variables.emplace("reasoning_effort", Json(*effort));
  }
  reader.Neutral("modalities", Json::array({"text"}));
  reader.Neutral("audio", nullptr);
  reader.Neutral("web_search_options", nullptr);
  reader.Neutral("verbosity", "medium");
  reader.Neutral("functions", Json::array());
  if (const Json* call = reader.Find("function_call"); call != nullptr && *call != "none" && *call != "auto") {
    reader.Neutral("function_call", "none");
  }
  reader.Neutral("add_special_tokens", false);
  reader.Ignore("prediction");  // a guess, which changes no text
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  return request;
}

Parsed<AnyRequest> ParseInvocation(const Json& body, const RequestLimits& limits) {
  const auto any = [](auto parsed) -> Parsed<AnyRequest> {
    if (!parsed) return std::unexpected(std::move(parsed).error());
    return *std::move(parsed);
  };
  if (JsonFind(body, "inputs") != nullptr) return any(ParseInputs(body, limits));
  if (JsonFind(body, "messages") != nullptr) return any(ParseChat(body, limits));
  return any(ParseCompletion(body, limits));
}

}  // namespace millrace::serve
