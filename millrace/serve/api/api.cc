#include "millrace/serve/api/api.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/http/server/cross_site.h"
#include "millrace/serve/calls/forced_call.h"
#include "millrace/serve/protocol/messages.h"
#include "millrace/serve/protocol/responses.h"

namespace millrace::serve {
namespace {

constexpr int kDefaultMaxTokens = 16;
/// Prompts may be lists of lists of token ids. A million values take some 16 MiB of memory.
constexpr JsonLimits kBodyLimits{.depth = 32, .values = 1024 * 1024};

std::int64_t UnixSeconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

template <auto parse>
Parsed<AnyRequest> ParseAny(const Json& body, const RequestLimits& limits) {
  auto parsed = parse(body, limits);
  if (!parsed) return std::unexpected(std::move(parsed).error());
  return *std::move(parsed);
}

/// Returns headers with the key of a request as OpenAI's clients send it. Anthropic's name it otherwise.
http::Headers KeyOf(const http::Headers& headers) {
  http::Headers key;
  const std::string_view bearer = headers.Get("Authorization"), other = headers.Get("x-api-key");
  key.Set("Authorization", bearer.empty() ? fmt::format("Bearer {}", other) : std::string(bearer));
  return key;
}

ApiError NoKey() {
  return {.status = 401,
          .message = "this server wants a key that it knows, as `Authorization: Bearer KEY`",
          .code = "invalid_api_key"};
}

ApiError Ending() {
  return {.status = 503, .message = "this server is ending; ask another one", .code = "server_ending"};
}

ApiError OtherSite() {
  return {.status = 403,
          .message =
              "a web page of another site sent this request, or it names this server neither by an address nor as "
              "localhost; give the server keys (--api-key-file), or --insecure to take such requests",
          .code = "other_site"};
}

}  // namespace

Api::Api(ServedScheduler& scheduler, const tokenizer::Tokenizer& tokenizer, Clock& clock, Options options)
    : scheduler_(scheduler),
      tokenizer_(tokenizer),
      clock_(clock),
      options_(std::move(options)),
      created_(UnixSeconds(clock.Wall())) {}

void Api::Handle(http::ServerRequest& request, http::ServerResponse& response) {
  struct Route {
    std::string_view method, path;
  };
  constexpr std::string_view kModels = "/v1/models";
  const std::string_view path = request.path(), method = request.method();
  if (path == "/" && options_.page) return Count(page_.Answer(request, response));
  for (Route route :
       {Route{"POST", "/v1/chat/completions"}, Route{"POST", "/v1/completions"}, Route{"POST", "/v1/responses"},
        Route{"POST", "/v1/messages"}, Route{"POST", "/v1/messages/count_tokens"}, Route{"POST", "/v1/embeddings"},
        Route{"POST", "/tokenize"}, Route{"POST", "/detokenize"}, Route{"POST", "/invocations"}, Route{"GET", kModels},
        Route{"GET", "/ping"}, Route{"GET", "/health"}, Route{"GET", "/metrics"}}) {
    bool member = route.path == kModels && path.starts_with("/v1/models/");
    if (path != route.path && !member) continue;
    // Balancers and orchestrators ask these two without a key; the answer is a word.
    const bool is_open = path == "/ping" || path == "/health";
    if (!is_open && !options_.keys.Allow(KeyOf(request.headers()))) return SendError(response, NoKey());
    if (!is_open && options_.keys.empty() && options_.own_site_only &&
        http::SiteOf(request.headers(), options_.scheme) != http::RequestSite::kOwn &&
        !options_.origins.Allow(request.headers())) {
      return SendError(response, OtherSite());
    }
    const bool is_head = method == "HEAD" && route.method == "GET";
    if (method != route.method && !is_head) {
      http::Headers headers = http::ContentType("application/json");
      headers.Set("Allow", route.method == "GET" ? "GET, HEAD" : std::string(route.method));
      ApiError error{.status = 405, .message = fmt::format("{} takes {}, not {}", path, route.method, method)};
      Count(error.status);
      (void)response.Send(error.status, std::move(headers), AsBytes(DumpJson(error.ToJson())));
      return;
    }
    if (method == "POST") {
      if (!BeginRequest()) return SendError(response, Ending());
      Post(request, response);
      return EndRequest();
    }
    if (path == "/metrics") return SendMetrics(response);
    if (route.path == kModels) return SendModels(request, response, member ? path.substr(kModels.size() + 1) : "");
    return SendHealth(response);
  }
  SendError(response,
            {.status = 404, .message = fmt::format("no such resource: {} {}", method, path), .code = "not_found"});
}

bool Api::BeginRequest() {
  MutexLock lock(drain_mutex_);
  if (!draining_) ++under_way_;
  return !draining_;
}

void Api::EndRequest() {
  MutexLock lock(drain_mutex_);
  --under_way_;
  one_answered_.NotifyAll();
}

void Api::Drain(TimePoint deadline) {
  MutexLock lock(drain_mutex_);
  draining_ = true;
  one_answered_.WaitUntil(drain_mutex_, deadline, {},
                          [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return under_way_ == 0; });
}

void Api::Post(http::ServerRequest& request, http::ServerResponse& response) {
  const auto body = ReadBody(request);
  if (!body) return SendError(response, body.error());
  const std::string_view path = request.path();
  if (path == "/v1/embeddings") return Embed(request, response, *body);
  if (path == "/v1/responses") {
    return Respond(request, response, *body);
  }
  if (path == "/v1/messages") {
    return Complete(request, response, *body, ParseAny<ParseMessages>, AnswerForm::kMessages);
  }
  if (path == "/v1/messages/count_tokens") return CountMessageTokens(request, response, *body);
  if (path == "/tokenize") return Tokenize(request, response, *body);
  if (path == "/detokenize") return Detokenize(response, *body);
  if (path == "/v1/chat/completions") return Complete(request, response, *body, ParseAny<ParseChat>);
  if (path == "/v1/completions") return Complete(request, response, *body, ParseAny<ParseCompletion>);
  if (JsonFind(*body, "input") != nullptr) return Embed(request, response, *body);
  Complete(request, response, *body, ParseInvocation);
}

void Api::Respond(http::ServerRequest& request, http::ServerResponse& response, const Json& body) {
  const auto previous = JsonString(body, "previous_response_id");
  const auto before = previous ? responses_.Find(*previous, UserOf(request)) : std::optional(Json(Json::array()));
  if (!before) {
    return SendError(response,
                     {.status = 404,
                      .message = fmt::format("this server does not keep the response \"{}\" any more; send the "
                                             "whole conversation as input",
                                             *previous),
                      .param = "previous_response_id",
                      .code = "previous_response_not_found"});
  }
  const auto parse = [&](const Json& with_input, const RequestLimits& limits) -> Parsed<AnyRequest> {
    auto parsed = ParseResponses(with_input, limits, *before);
    if (!parsed) return std::unexpected(std::move(parsed).error());
    return *std::move(parsed);
  };
  Complete(request, response, body, parse, AnswerForm::kResponses);
}

void Api::Complete(http::ServerRequest& request, http::ServerResponse& response, const Json& body, const Parse& parse,
                   AnswerForm chat) {
  if (!options_.generates) {
    return SendError(
        response,
        {.message = fmt::format("{} makes embeddings and no texts: ask /v1/embeddings", options_.model_name),
         .param = "model",
         .code = "no_texts"},
        chat);
  }
  TimePoint arrived = clock_.Now();
  auto parsed = parse(body, options_.limits);
  if (!parsed) return SendError(response, parsed.error(), chat);
  auto job = Admit(*std::move(parsed), arrived, UserOf(request), request.stop());
  if (!job) return SendError(response, job.error(), chat);
  job->arrived = arrived;
  if (chat != AnswerForm::kChat) {
    job->form = chat;
    job->head.id = (chat == AnswerForm::kMessages ? "msg_" : "resp_") + SecureHex(12);
  }
  const Status done = CompletionAnswer(*job, tokenizer_, metrics_, clock_).Send(request, response);
  metrics_.request_s.Observe(SecondsOf(clock_.Now() - arrived));
  if (done && job->messages.is_array()) responses_.Put(job->head.id, UserOf(request), job->messages);
  if (done) return Count(200);
  // A client's going shows as a failed write or as the stop token, whichever comes first.
  if (request.stop().stop_requested() || done.error().code() == Code::kUnavailable) metrics_.cancelled.Add();
  options_.log.Info("completion not delivered", {{"peer", request.peer()}, {"error", done.error()}});
  if (!response.started()) SendError(response, ToApiError(done.error()), chat);
}

TimePoint Api::After(TimePoint begin, Duration time) { return time > Duration{} ? begin + time : TimePoint::max(); }

int Api::UserOf(http::ServerRequest& request) const { return options_.keys.Find(KeyOf(request.headers())).value_or(0); }

Parsed<Json> Api::ReadBody(http::ServerRequest& request) const {
  auto text = request.ReadAllBody(options_.max_body_bytes);
  if (!text && text.error().code() == Code::kResourceExhausted) {
    return std::unexpected(
        ApiError{.status = 413, .message = fmt::format("the body is larger than {} bytes", options_.max_body_bytes)});
  }
  if (!text) return std::unexpected(ToApiError(text.error()));
  auto body = ParseJson(*text, "the body", kBodyLimits);
  if (!body) return std::unexpected(ApiError{.message = body.error().ToString(), .code = "invalid_json"});
  return *std::move(body);
}

Parsed<std::vector<TokenId>> Api::KnownTokens(const std::vector<TokenId>& ids, std::string_view param) const {
  for (const TokenId id : ids) {
    if (id < tokenizer_.vocab_size()) continue;
    return std::unexpected(
        ApiError{.message = fmt::format("token {} is outside the vocabulary of {}", id, tokenizer_.vocab_size()),
                 .param = std::string(param)});
  }
  return ids;
}

/// Text becomes tokens here; an empty prompt is the place between two documents.
Parsed<std::vector<TokenId>> Api::Tokens(const Prompt& prompt, const CompletionRequest& request,
                                         const Adapter* adapter) const {
  if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt)) return KnownTokens(*given, "prompt");
  std::vector<TokenId> ids;
  const std::string& text = std::get<std::string>(prompt);
  const TokenId bos = request.adds_bos && AddsBos(adapter) ? tokenizer_.bos() : tokenizer::kNoToken;
  if (bos != tokenizer::kNoToken) ids.push_back(bos);
  const auto encoded =
      request.splits_specials ? tokenizer_.Encode(text, ids) : tokenizer_.EncodeWithSpecials(text, ids);
  if (!encoded) return std::unexpected(ToApiError(encoded.error()));
  // A prompt that a template wrote spells its own beginning.
  if (ids.size() > 1 && bos != tokenizer::kNoToken && ids[1] == bos) ids.erase(ids.begin());
  if (ids.empty()) ids.push_back(tokenizer_.eos() != tokenizer::kNoToken ? tokenizer_.eos() : 0);
  return ids;
}

Parsed<std::shared_ptr<const Adapter>> Api::ChooseAdapter(const std::string& model, std::stop_token stop) const {
  if (model.empty() || model == options_.model_name) return nullptr;
  const bool may_have = options_.adapters != nullptr && options_.adapters->MayHave(model);
  if (!may_have) return std::unexpected(NoSuchModel(model, options_.adapters != nullptr));
  auto adapter = options_.adapters->Get(model, std::move(stop));
  if (adapter) return *std::move(adapter);
  ApiError error = ToApiError(adapter.error());
  error.message = fmt::format("the adapter \"{}\" cannot be used: {}", model, error.message);
  error.param = "model";
  if (adapter.error().code() == Code::kNotFound) error.code = "model_not_found";
  // Clients try again after 500 and more, and a broken adapter stays broken.
  if (error.status >= 500 && !IsRetryable(adapter.error().code())) {
    error.status = 422;
    error.type = "invalid_request_error";
  }
  return std::unexpected(std::move(error));
}

bool Api::AddsBos(const Adapter* adapter) const {
  const bool follows = adapter != nullptr && !options_.fixed_add_bos;
  return follows ? adapter->add_bos().value_or(options_.add_bos) : options_.add_bos;
}

Parsed<CompletionJob> Api::Describe(const CompletionRequest& request, AnswerForm form, const Adapter* adapter) const {
  CompletionJob job{.form = form, .options = request.options, .ends = options_.ends};
  job.tells_prompt = request.echo && request.options.sampling.logprobs.has_value();
  for (const Prompt& prompt : request.prompts) {
    auto tokens = Tokens(prompt, request, adapter);
    if (!tokens) return std::unexpected(std::move(tokens).error());
    if (request.echo) {
      const auto* text = std::get_if<std::string>(&prompt);
      auto decoded = text != nullptr ? Result<std::string>(*text) : tokenizer_.Decode(*tokens);
      if (!decoded) return std::unexpected(ToApiError(decoded.error()));
      job.echoes.push_back(*std::move(decoded));
    }
    job.prompts.push_back(*std::move(tokens));
  }
  return job;
}

Parsed<CompletionJob> Api::Describe(const ChatRequest& request, const Adapter* adapter) const {
  if (!options_.chat) {
    return std::unexpected(ApiError{.message = fmt::format("{} takes no conversations", options_.model_name)});
  }
  Json variables = request.variables;
  if (adapter != nullptr && !variables.contains("add_bos")) variables["add_bos"] = AddsBos(adapter);
  const PromptEnd end = request.continues_last          ? PromptEnd::kContinueLast
                        : request.add_generation_prompt ? PromptEnd::kNewAnswer
                                                        : PromptEnd::kNothing;
  auto prompt = options_.chat->Prompt(request.messages, request.tools, variables, end, clock_.Wall());
  if (!prompt) {
    return std::unexpected(ApiError{.message = fmt::format("chat template: {}", prompt.error().message()),
                                    .param = "messages",
                                    .code = "chat_template"});
  }
  if (prompt->empty()) {
    return std::unexpected(ApiError{.message = "the chat template makes an empty prompt of this conversation",
                                    .param = "messages",
                                    .code = "chat_template"});
  }
  CompletionJob job{.form = AnswerForm::kChat, .options = request.options, .ends = options_.ends};
  job.tool_syntax = options_.chat->tool_syntax();
  job.tool_choice = request.tool_choice;
  job.echoed = request.echoed;
  if (const Json* keeps = JsonFind(request.echoed, "store"); keeps != nullptr && *keeps == true) {
    // The instructions are those of one response only.
    job.messages = request.messages;
    if (request.echoed.contains("instructions")) job.messages.erase(0);
  }
  if (job.tool_choice.is_forced()) {
    auto schema = CallSchema(request.tools, job.tool_choice, job.tool_syntax);
    if (!schema) return std::unexpected(ApiError{.message = schema.error().ToString(), .param = "tools"});
    job.options.form = {.kind = TextForm::Kind::kJsonSchema, .schema = *std::move(schema)};
    if (auto opened = tokenizer_.EncodeWithSpecials(CallOpener(job.tool_syntax), *prompt); !opened) {
      return std::unexpected(ToApiError(opened.error()));
    }
  }
  job.prompts.push_back(*std::move(prompt));
  const auto& stops = options_.chat->stops();
  job.options.stops.insert(job.options.stops.end(), stops.begin(), stops.end());
  job.ends.insert(job.ends.end(), options_.chat->ends().begin(), options_.chat->ends().end());
  return job;
}

Parsed<std::vector<GenerationRequest>> Api::RequestTexts(const CompletionJob& job,
                                                         const GenerationRequest& common) const {
  const RequestOptions& options = job.options;
  // A conversation goes on until the model ends it; a completion by default for a few words.
  const int default_tokens = job.form == AnswerForm::kChat ? options_.limits.max_tokens : kDefaultMaxTokens;
  std::vector<GenerationRequest> texts;
  for (const std::vector<TokenId>& prompt : job.prompts) {
    const int room = options_.context_length - static_cast<int>(std::min<std::size_t>(prompt.size(), 1 << 30));
    if (room < options.max_tokens.value_or(1)) {
      return std::unexpected(ApiError{
          .message = fmt::format("the prompt has {} tokens and max_tokens is {}, but the model's context is {} tokens",
                                 prompt.size(), options.max_tokens.value_or(1), options_.context_length),
          .param = job.form == AnswerForm::kChat ? "messages" : "prompt",
          .code = "context_length_exceeded"});
    }
    for (int text = 0; text < options.made_texts(); ++text) {
      GenerationRequest made = common;
      made.prompt = prompt;
      made.max_tokens = options.max_tokens.value_or(std::min({default_tokens, room, options_.limits.max_tokens}));
      // To find the best.
      if (options.made_texts() > options.texts && !made.sampling.logprobs) made.sampling.logprobs = 0;
      // Several texts of one seed draw differently, but the same again in the same request.
      made.sampling.seed = (options.seed_given ? made.sampling.seed : SystemEntropy()) + texts.size();
      texts.push_back(std::move(made));
    }
  }
  return texts;
}

Parsed<CompletionJob> Api::Admit(AnyRequest any, TimePoint arrived, int user, std::stop_token stop) {
  struct ModelName {
    const std::string& operator()(const CompletionRequest& request) const { return request.options.model; }
    const std::string& operator()(const InputsRequest& request) const { return request.request.options.model; }
    const std::string& operator()(const ChatRequest& request) const { return request.options.model; }
  };
  struct Describer {
    const Api& api;
    const Adapter* adapter;
    Parsed<CompletionJob> operator()(const CompletionRequest& request) const {
      return api.Describe(request, AnswerForm::kCompletion, adapter);
    }
    Parsed<CompletionJob> operator()(const InputsRequest& request) const {
      return api.Describe(request.request, AnswerForm::kInputs, adapter);
    }
    Parsed<CompletionJob> operator()(const ChatRequest& request) const { return api.Describe(request, adapter); }
  };
  const auto adapter = ChooseAdapter(std::visit(ModelName{}, any), std::move(stop));
  if (!adapter) return std::unexpected(adapter.error());
  auto described = std::visit(Describer{*this, adapter->get()}, any);
  if (!described) return described;
  CompletionJob& job = *described;
  const RequestOptions& options = job.options;
  if (options.ignores_ends) job.ends.clear();
  job.ends.insert(job.ends.end(), options.stop_tokens.begin(), options.stop_tokens.end());
  const auto constraint = forms_.Get(options.form);
  if (!constraint) {
    return std::unexpected(ApiError{.message = constraint.error().ToString(),
                                    .param = job.tool_choice.is_forced() ? "tools" : "response_format",
                                    .code = "unsupported_form"});
  }
  GenerationRequest common{.ends = job.ends,
                           .sampling = options.sampling,
                           .prompt_logprobs = job.tells_prompt,
                           .user = user,
                           .start_by = After(arrived, options_.max_wait),
                           .end_by = After(arrived, options_.max_time),
                           .adapter = *adapter};
  common.sampling.constraint = *constraint;
  if (*constraint || options.sampling.min_tokens > 0) common.sampling.ends = job.ends;
  auto generations = RequestTexts(job, common);
  if (!generations) return std::unexpected(generations.error());
  for (const std::vector<TokenId>& prompt : job.prompts) job.usage.prompt += static_cast<std::int64_t>(prompt.size());
  job.scheduler = scheduler_.Get();
  auto admitted = job.scheduler->Submit(*std::move(generations));
  if (!admitted) return std::unexpected(ToApiError(admitted.error()));
  job.generations = *std::move(admitted);
  job.head = {(job.form == AnswerForm::kChat ? "chatcmpl-" : "cmpl-") + SecureHex(12), UnixSeconds(clock_.Wall()),
              *adapter != nullptr ? options.model : options_.model_name};
  metrics_.prompt_tokens.Add(static_cast<std::uint64_t>(job.usage.prompt));
  return described;
}

void Api::Count(int status) {
  registry_.AddCounter("millrace_requests_total", "Requests answered", {{"status", std::to_string(status)}}).Add();
}

void Api::SendJson(http::ServerResponse& response, int status, const Json& body) {
  Count(status);
  // A client that has gone needs no answer.
  (void)response.Send(status, http::ContentType("application/json"), AsBytes(DumpJson(body)));
}

void Api::SendError(http::ServerResponse& response, const ApiError& error, AnswerForm form) {
  Count(error.status);
  http::Headers headers = http::ContentType("application/json");
  if (error.status == 429 || error.status == 503) headers.Set("Retry-After", "1");
  if (error.status == 401) headers.Set("WWW-Authenticate", "Bearer");
  const Json body = form == AnswerForm::kMessages ? MessagesError(error) : error.ToJson();
  (void)response.Send(error.status, std::move(headers), AsBytes(DumpJson(body)));
}

void Api::SendHealth(http::ServerResponse& response) {
  MutexLock lock(drain_mutex_);
  const bool draining = draining_;
  lock.Unlock();
  SendJson(response, draining ? 503 : 200, {{"status", draining ? "draining" : "ok"}});
}

ApiError Api::NoSuchModel(std::string_view wanted, bool has_adapters) const {
  return {.status = 404,
          .message = fmt::format("the model \"{}\" does not exist here; this server has \"{}\"{}", wanted,
                                 options_.model_name, has_adapters ? " and the adapters that /v1/models lists" : ""),
          .param = "model",
          .code = "model_not_found"};
}

Json Api::ModelEntry(const std::string& name) const {
  Json entry = {{"id", name},
                {"object", "model"},
                {"created", created_},
                {"owned_by", "millrace"},
                {"max_model_len", options_.context_length}};
  if (name != options_.model_name) entry["parent"] = options_.model_name;
  return entry;
}

void Api::SendModels(http::ServerRequest& request, http::ServerResponse& response, std::string_view name) {
  std::vector<std::string> names{options_.model_name};
  if (options_.adapters != nullptr) {
    auto adapters = options_.adapters->Names({.stop = request.stop(), .deadline = {}});
    if (!adapters) return SendError(response, ToApiError(adapters.error()));
    for (std::string& adapter : *adapters) {
      if (adapter != options_.model_name) names.push_back(std::move(adapter));
    }
  }
  if (name.empty()) {
    Json entries = Json::array();
    for (const std::string& each : names) entries.push_back(ModelEntry(each));
    return SendJson(response, 200, {{"object", "list"}, {"data", std::move(entries)}});
  }
  const auto decoded = PercentDecode(name);
  if (decoded && std::ranges::find(names, *decoded) != names.end()) {
    return SendJson(response, 200, ModelEntry(*decoded));
  }
  SendError(response, NoSuchModel(decoded.value_or(std::string(name)), names.size() > 1));
}

void Api::SendMetrics(http::ServerResponse& response) {
  metrics_.Update(scheduler_, options_.follower, options_.adapters);
  Count(200);
  std::string text = registry_.PrometheusText();
  (void)response.Send(200, http::ContentType("text/plain; version=0.0.4"), AsBytes(text));
}

}  // namespace millrace::serve
