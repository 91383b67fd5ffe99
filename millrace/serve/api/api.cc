#include "millrace/serve/api/api.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/http/server/cross_site.h"
#include "millrace/serve/api/text_maker.h"
#include "millrace/serve/calls/forced_call.h"

namespace millrace::serve {
namespace {

constexpr int kDefaultMaxTokens = 16;
/// Prompts may be lists of lists of token ids. A million values take some 16 MiB of memory.
constexpr JsonLimits kBodyLimits{.depth = 32, .values = 1024 * 1024};

const std::vector<double> kSecondsBuckets = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::int64_t UnixSeconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

http::Headers ContentType(std::string type) {
  http::Headers headers;
  headers.Set("Content-Type", std::move(type));
  return headers;
}

template <auto parse>
Parsed<AnyRequest> ParseAny(const Json& body, const RequestLimits& limits) {
  auto parsed = parse(body, limits);
  if (!parsed) return std::unexpected(std::move(parsed).error());
  return *std::move(parsed);
}

ApiError NoKey() {
  return {.status = 401,
          .message = "this server wants a key that it knows, as `Authorization: Bearer KEY`",
          .code = "invalid_api_key"};
}

ApiError OtherSite() {
  return {.status = 403,
          .message =
              "a web page of another site sent this request, or it names this server neither by an address nor as "
              "localhost; give the server keys (--api-key-file), or --insecure to take such requests",
          .code = "other_site"};
}

}  // namespace

struct Api::Job {
  AnswerForm form = AnswerForm::kCompletion;
  AnswerHead head;
  RequestOptions options;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<TokenId> ends;
  std::vector<std::string> echoes;            ///< the text of each prompt, where it is to be repeated
  std::shared_ptr<Scheduler> scheduler = {};  ///< that makes the texts
  std::vector<Generation> generations;        ///< options.made_texts() for each prompt
  int user = 0;
  ToolSyntax tool_syntax = ToolSyntax::kUnknown;
  ToolChoice tool_choice;
  Usage usage;
  TimePoint arrived;
  bool first_token_seen = false;

  /// Returns what finds the calls of a text; nothing if there are none to find.
  std::optional<CallReader> Calls() const {
    if (tool_choice.kind == ToolChoice::Kind::kNone) return std::nullopt;
    using enum TextForm::Kind;
    // With a JSON response_format, the text is the answer and never a call.
    const bool is_json = options.form.kind == kJsonObject || options.form.kind == kJsonSchema;
    if (!tool_choice.is_forced() && (tool_syntax == ToolSyntax::kUnknown || is_json)) return std::nullopt;
    return CallReader(tool_syntax, tool_choice.names, tool_choice.is_forced());
  }
  std::string_view echo(std::size_t generation) const {
    return echoes.empty() ? std::string_view() : echoes[generation / static_cast<std::size_t>(options.made_texts())];
  }
};

Api::Metrics::Metrics(metrics::Registry& registry)
    : prompt_tokens(registry.AddCounter("millrace_prompt_tokens_total", "Tokens of admitted prompts")),
      generated_tokens(registry.AddCounter("millrace_generated_tokens_total", "Tokens made")),
      cancelled(registry.AddCounter("millrace_requests_cancelled_total", "Requests whose client went away")),
      shared_tokens(registry.AddCounter("millrace_shared_tokens_total",
                                        "Tokens that were in the KV cache and not computed again")),
      preemptions(registry.AddCounter("millrace_preemptions_total", "Texts that gave up their blocks of the KV cache")),
      drafted_tokens(registry.AddCounter("millrace_drafted_tokens_total", "Tokens guessed before they were computed")),
      accepted_tokens(registry.AddCounter("millrace_accepted_tokens_total", "Guessed tokens that came true")),
      failed_drafts(registry.AddCounter("millrace_failed_drafts_total", "Calls of the draft model that failed")),
      adapter_loads(registry.AddCounter("millrace_adapter_loads_total", "Adapters loaded")),
      adapter_failures(registry.AddCounter("millrace_adapter_failures_total", "Adapters that could not be loaded")),
      adapter_evictions(
          registry.AddCounter("millrace_adapter_evictions_total", "Adapters that gave up their memory to others")),
      reloads(registry.AddCounter("millrace_model_reloads_total", "Newer checkpoints that were taken")),
      failed_reloads(
          registry.AddCounter("millrace_model_reload_failures_total", "Newer checkpoints that could not be served")),
      running(registry.AddGauge("millrace_generations_running", "Texts the model works on")),
      waiting(registry.AddGauge("millrace_generations_waiting", "Texts that wait for the model")),
      cache_blocks_used(registry.AddGauge("millrace_cache_blocks_used", "Blocks of the KV cache that texts use")),
      cache_blocks(registry.AddGauge("millrace_cache_blocks", "Blocks of the KV cache")),
      adapters(registry.AddGauge("millrace_adapters", "Adapters in memory")),
      adapter_bytes(registry.AddGauge("millrace_adapter_bytes", "Memory of adapters")),
      model_step(registry.AddGauge("millrace_model_step", "Step of the checkpoint that new requests get")),
      first_token_s(
          registry.AddHistogram("millrace_first_token_seconds", "From request to first token", kSecondsBuckets)),
      request_s(registry.AddHistogram("millrace_request_seconds", "From request to the end of its answer",
                                      kSecondsBuckets)) {}

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
  for (Route route : {Route{"POST", "/v1/chat/completions"}, Route{"POST", "/v1/completions"},
                      Route{"POST", "/v1/embeddings"}, Route{"POST", "/invocations"}, Route{"GET", kModels},
                      Route{"GET", "/ping"}, Route{"GET", "/health"}, Route{"GET", "/metrics"}}) {
    bool member = route.path == kModels && path.starts_with("/v1/models/");
    if (path != route.path && !member) continue;
    // Balancers and orchestrators ask these two without a key; the answer is a word.
    const bool is_open = path == "/ping" || path == "/health";
    if (!is_open && !options_.keys.Allow(request.headers())) return SendError(response, NoKey());
    if (!is_open && options_.keys.empty() && options_.own_site_only &&
        http::SiteOf(request.headers(), options_.scheme) != http::RequestSite::kOwn &&
        !options_.origins.Allow(request.headers())) {
      return SendError(response, OtherSite());
    }
    if (method != route.method) {
      http::Headers headers = ContentType("application/json");
      headers.Set("Allow", std::string(route.method));
      ApiError error{.status = 405, .message = fmt::format("{} takes {}, not {}", path, route.method, method)};
      Count(error.status);
      (void)response.Send(error.status, std::move(headers), AsBytes(DumpJson(error.ToJson())));
      return;
    }
    if (method == "POST") return Post(request, response);
    if (path == "/metrics") return SendMetrics(response);
    if (route.path == kModels) return SendModels(request, response, member ? path.substr(kModels.size() + 1) : "");
    return SendHealth(response);
  }
  SendError(response,
            {.status = 404, .message = fmt::format("no such resource: {} {}", method, path), .code = "not_found"});
}

void Api::Post(http::ServerRequest& request, http::ServerResponse& response) {
  const auto body = ReadBody(request);
  if (!body) return SendError(response, body.error());
  const std::string_view path = request.path();
  if (path == "/v1/embeddings") return Embed(request, response, *body);
  if (path == "/v1/chat/completions") return Complete(request, response, *body, ParseAny<ParseChat>);
  if (path == "/v1/completions") return Complete(request, response, *body, ParseAny<ParseCompletion>);
  if (JsonFind(*body, "input") != nullptr) return Embed(request, response, *body);
  Complete(request, response, *body, ParseInvocation);
}

void Api::Complete(http::ServerRequest& request, http::ServerResponse& response, const Json& body, Parse parse) {
  if (!options_.generates) {
    return SendError(
        response, {.message = fmt::format("{} makes embeddings and no texts: ask /v1/embeddings", options_.model_name),
                   .param = "model",
                   .code = "no_texts"});
  }
  TimePoint arrived = clock_.Now();
  auto parsed = parse(body, options_.limits);
  if (!parsed) return SendError(response, parsed.error());
  auto job = Admit(*std::move(parsed), arrived, UserOf(request), request.stop());
  if (!job) return SendError(response, job.error());
  job->arrived = arrived;
  Status done = job->options.stream ? Stream(*job, request, response) : Collect(*job, request, response);
  metrics_.request_s.Observe(Seconds(clock_.Now() - arrived));
  if (done) return Count(200);
  // A client's going shows as a failed write or as the stop token, whichever comes first.
  if (request.stop().stop_requested() || done.error().code() == Code::kUnavailable) metrics_.cancelled.Add();
  options_.log.Info("completion not delivered", {{"peer", request.peer()}, {"error", done.error()}});
  if (!response.started()) SendError(response, ToApiError(done.error()));
}

TimePoint Api::After(TimePoint begin, Duration time) { return time > Duration{} ? begin + time : TimePoint::max(); }

int Api::UserOf(http::ServerRequest& request) const { return options_.keys.Find(request.headers()).value_or(0); }

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

/// Text becomes tokens here; an empty prompt is the place between two documents.
Parsed<std::vector<TokenId>> Api::Tokens(const Prompt& prompt, std::string_view param, const Adapter* adapter) const {
  std::vector<TokenId> ids;
  if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
    for (TokenId id : *given) {
      if (id < tokenizer_.vocab_size()) continue;
      return std::unexpected(
          ApiError{.message = fmt::format("token {} is outside the vocabulary of {}", id, tokenizer_.vocab_size()),
                   .param = std::string(param)});
    }
    return *given;
  }
  if (AddsBos(adapter) && tokenizer_.bos() != tokenizer::kNoToken) ids.push_back(tokenizer_.bos());
  if (auto encoded = tokenizer_.Encode(std::get<std::string>(prompt), ids); !encoded) {
    return std::unexpected(ToApiError(encoded.error()));
  }
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

Parsed<Api::Job> Api::Describe(const CompletionRequest& request, AnswerForm form, const Adapter* adapter) const {
  Job job{.form = form, .options = request.options, .ends = options_.ends};
  for (const Prompt& prompt : request.prompts) {
    auto tokens = Tokens(prompt, "prompt", adapter);
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

Parsed<Api::Job> Api::Describe(const ChatRequest& request, const Adapter* adapter) const {
  if (!options_.chat) {
    return std::unexpected(ApiError{.message = fmt::format("{} takes no conversations", options_.model_name)});
  }
  Json variables = request.variables;
  if (adapter != nullptr && !variables.contains("add_bos")) variables["add_bos"] = AddsBos(adapter);
  auto prompt =
      options_.chat->Prompt(request.messages, request.tools, variables, request.add_generation_prompt, clock_.Wall());
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
  Job job{.form = AnswerForm::kChat, .options = request.options, .ends = options_.ends};
  job.tool_syntax = options_.chat->tool_syntax();
  job.tool_choice = request.tool_choice;
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

Parsed<Api::Job> Api::Admit(AnyRequest any, TimePoint arrived, int user, std::stop_token stop) {
  struct ModelName {
    const std::string& operator()(const CompletionRequest& request) const { return request.options.model; }
    const std::string& operator()(const InputsRequest& request) const { return request.request.options.model; }
    const std::string& operator()(const ChatRequest& request) const { return request.options.model; }
  };
  struct Describer {
    const Api& api;
    const Adapter* adapter;
    Parsed<Job> operator()(const CompletionRequest& request) const {
      return api.Describe(request, AnswerForm::kCompletion, adapter);
    }
    Parsed<Job> operator()(const InputsRequest& request) const {
      return api.Describe(request.request, AnswerForm::kInputs, adapter);
    }
    Parsed<Job> operator()(const ChatRequest& request) const { return api.Describe(request, adapter); }
  };
  const auto adapter = ChooseAdapter(std::visit(ModelName{}, any), std::move(stop));
  if (!adapter) return std::unexpected(adapter.error());
  auto described = std::visit(Describer{*this, adapter->get()}, any);
  if (!described) return described;
  Job& job = *described;
  const RequestOptions& options = job.options;
  const auto constraint = forms_.Get(options.form);
  if (!constraint) {
    return std::unexpected(ApiError{.message = constraint.error().ToString(),
                                    .param = job.tool_choice.is_forced() ? "tools" : "response_format",
                                    .code = "unsupported_form"});
  }
  // A conversation goes on until the model ends it; a completion by default for a few words.
  const int default_tokens = job.form == AnswerForm::kChat ? options_.limits.max_tokens : kDefaultMaxTokens;
  std::vector<GenerationRequest> generations;
  for (const std::vector<TokenId>& prompt : job.prompts) {
    const int room = options_.context_length - static_cast<int>(std::min<std::size_t>(prompt.size(), 1 << 30));
    if (room < options.max_tokens.value_or(1)) {
      return std::unexpected(ApiError{
          .message = fmt::format("the prompt has {} tokens and max_tokens is {}, but the model's context is {} tokens",
                                 prompt.size(), options.max_tokens.value_or(1), options_.context_length),
          .param = job.form == AnswerForm::kChat ? "messages" : "prompt",
          .code = "context_length_exceeded"});
    }
    job.usage.prompt += static_cast<std::int64_t>(prompt.size());
    for (int text = 0; text < options.made_texts(); ++text) {
      SamplingOptions sampling = options.sampling;
      sampling.constraint = *constraint;
      if (*constraint) sampling.ends = job.ends;
      if (options.made_texts() > options.texts && !sampling.logprobs) sampling.logprobs = 0;  // to find the best
      // Several texts of one seed draw differently, but the same again in the same request.
      sampling.seed = (options.seed_given ? sampling.seed : SystemEntropy()) + generations.size();
      generations.push_back(
          {.prompt = prompt,
           .max_tokens = options.max_tokens.value_or(std::min({default_tokens, room, options_.limits.max_tokens})),
           .ends = job.ends,
           .sampling = std::move(sampling),
           .user = user,
           .start_by = After(arrived, options_.max_wait),
           .end_by = After(arrived, options_.max_time),
           .adapter = *adapter});
    }
  }
  job.scheduler = scheduler_.Get();
  auto admitted = job.scheduler->Submit(std::move(generations));
  if (!admitted) return std::unexpected(ToApiError(admitted.error()));
  job.generations = *std::move(admitted);
  job.head = {(job.form == AnswerForm::kChat ? "chatcmpl-" : "cmpl-") + SecureHex(12), UnixSeconds(clock_.Wall()),
              *adapter != nullptr ? options.model : options_.model_name};
  metrics_.prompt_tokens.Add(static_cast<std::uint64_t>(job.usage.prompt));
  return described;
}

std::string Api::TokenText(TokenId token) const {
  // A token within a text: one that begins a word keeps its space.
  tokenizer::DecodeState within{.begun = true};
  std::string text;
  if (!tokenizer_.DecodeNext(within, token, text)) return text;
  tokenizer_.DecodeEnd(within, text);
  return text.empty() ? tokenizer_.Piece(token).value_or("") : text;
}

TokenLogprobs Api::Logprobs(const SampledToken& token) const {
  TokenLogprobs told{.text = TokenText(token.token), .logprob = token.logprob};
  for (const TokenLogprob& each : token.likeliest) told.likeliest.emplace_back(TokenText(each.token), each.logprob);
  return told;
}

/// A text while it is made.
struct Api::Text {
  TextMaker maker;
  std::vector<TokenLogprobs> logprobs = {};  ///< of tokens whose text was not sent yet
  double logprob_sum = 0;
  int tokens = 0;
  bool has_ended = false;

  /// Returns the mean log-probability of a token.
  double Score() const { return tokens > 0 ? logprob_sum / tokens : 0; }
};

Status Api::TakeToken(Job& job, std::size_t index, Text& text, const SampledToken& token, const Emit& emit) {
  if (!std::exchange(job.first_token_seen, true)) metrics_.first_token_s.Observe(Seconds(clock_.Now() - job.arrived));
  ++job.usage.completion;
  ++text.tokens;
  text.logprob_sum += token.logprob;
  metrics_.generated_tokens.Add();
  if (job.options.sampling.logprobs) text.logprobs.push_back(Logprobs(token));
  const AnswerParts parts = MR_TRY(text.maker.Add(token.token));
  if (!parts.empty()) MR_TRY(emit(index, parts, ""));
  return {};
}

Status Api::EndText(Job& job, std::size_t index, Text& text, const Emit& emit) {
  text.has_ended = true;
  Generation& generation = job.generations[index];
  std::string finish = "stop";
  if (text.maker.stopped()) {
    generation.Cancel();
  } else if (MR_TRY(generation.result()) == FinishReason::kLength) {
    finish = "length";
  }
  const AnswerParts rest = MR_TRY(text.maker.Finish());
  if (text.maker.stopped()) finish = "stop";
  // As OpenAI's, a text whose function was named stops.
  const bool tells_calls = job.tool_choice.kind != ToolChoice::Kind::kNamed;
  if (finish == "stop" && text.maker.calls() && tells_calls) finish = "tool_calls";
  return emit(index, rest, finish);
}

Status Api::MakeTexts(Job& job, std::vector<Text>& texts, std::stop_token stop, const Emit& emit) {
  const Generation& any = job.generations.front();
  for (std::size_t open = texts.size(); open > 0;) {
    const std::uint64_t seen = any.news();
    bool is_idle = true;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].has_ended) continue;
      // In this order: tokens come before the end.
      const bool has_ended = job.generations[i].has_ended();
      const auto token = job.generations[i].TryNext();
      if (!token && !has_ended) continue;
      is_idle = false;
      // One token of each text, so that none waits for another.
      if (token) MR_TRY(TakeToken(job, i, texts[i], *token, emit));
      if (token && !texts[i].maker.stopped()) continue;
      if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
      MR_TRY(EndText(job, i, texts[i], emit));
      --open;
    }
    if (is_idle) any.AwaitNews(seen, stop);
    if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
  }
  return {};
}

std::vector<Api::Text> Api::BeginTexts(const Job& job) const {
  std::vector<Text> texts;
  for (const Generation& generation : job.generations) {
    texts.push_back(
        {TextMaker(tokenizer_, generation.request().prompt, job.options.stops, job.Calls(), job.tool_choice.parallel)});
  }
  return texts;
}

/// Returns the numbers of the texts that the answer has: all, or the likeliest ones of each prompt.
std::vector<std::size_t> Api::ChooseTexts(const Job& job, const std::vector<Text>& texts) {
  const auto made = static_cast<std::size_t>(job.options.made_texts()),
             wanted = static_cast<std::size_t>(job.options.texts);
  std::vector<std::size_t> chosen;
  for (std::size_t first = 0; first < texts.size(); first += made) {
    std::vector<std::size_t> order(made);
    std::iota(order.begin(), order.end(), first);
    if (made > wanted) {
      std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
        const double first_score = texts[a].Score(), second_score = texts[b].Score();
        return first_score != second_score ? first_score > second_score : a < b;
      });
    }
    chosen.insert(chosen.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted));
  }
  return chosen;
}

Status Api::Collect(Job& job, http::ServerRequest& request, http::ServerResponse& response) {
  struct Whole {
    std::string text, finish;
    std::vector<ToolCallPart> calls;
    std::vector<TokenLogprobs> logprobs;
  };
  std::vector<Text> texts = BeginTexts(job);
  std::vector<Whole> answers(texts.size());
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i].text = job.echo(i);
  MR_TRY(MakeTexts(job, texts, request.stop(),
                   [&](std::size_t index, const AnswerParts& parts, std::string_view finish) -> Status {
                     Whole& whole = answers[index];
                     whole.text += parts.text;
                     whole.finish = finish;
                     for (const ToolCallPart& part : parts.calls) {
                       if (part.index == whole.calls.size()) whole.calls.push_back(part);
                       if (part.id.empty()) whole.calls[part.index].arguments += part.arguments;
                     }
                     if (parts.empty()) return {};  // tokens of a stop string
                     std::ranges::move(texts[index].logprobs, std::back_inserter(whole.logprobs));
                     texts[index].logprobs.clear();
                     return {};
                   }));
  Json choices = Json::array();
  for (const std::size_t i : ChooseTexts(job, texts)) {
    choices.push_back(Choice(job.form, /*chunk=*/false,
                             {.index = choices.size(),
                              .text = answers[i].text,
                              .logprobs = job.options.sampling.logprobs ? &answers[i].logprobs : nullptr,
                              .calls = answers[i].calls,
                              .finish = answers[i].finish}));
  }
  const Json body = Answer(job.form, /*chunk=*/false, job.head, std::move(choices), job.usage);
  return response.Send(200, ContentType("application/json"), AsBytes(DumpJson(body)));
}

Status Api::Stream(Job& job, http::ServerRequest& request, http::ServerResponse& response) {
  const auto send = [&](Json choices, const std::optional<Usage>& usage) -> Status {
    if (!response.started()) {
      http::Headers headers = ContentType("text/event-stream; charset=utf-8");
      headers.Set("Cache-Control", "no-cache");
      MR_TRY(response.Start(200, std::move(headers), std::nullopt));
    }
    return response.Write(
        AsBytes(ServerSentEvent(Answer(job.form, /*chunk=*/true, job.head, std::move(choices), usage))));
  };
  std::vector<Text> texts = BeginTexts(job);
  std::vector<std::size_t> offsets(texts.size());
  std::vector<bool> begun(texts.size());
  const auto piece = [&](std::size_t index, std::string_view text, std::span<const ToolCallPart> calls) -> Status {
    std::vector<TokenLogprobs>& logprobs = texts[index].logprobs;
    const bool tells = job.options.sampling.logprobs.has_value();
    Json choice = Choice(job.form, /*chunk=*/true,
                         {.index = index,
                          .text = text,
                          .logprobs = tells && !logprobs.empty() ? &logprobs : nullptr,
                          .calls = calls,
                          .text_offset = offsets[index],
                          .finish = ""});
    logprobs.clear();
    offsets[index] += text.size();
    return send(Json::array({std::move(choice)}), std::nullopt);
  };
  const Status made = MakeTexts(
      job, texts, request.stop(), [&](std::size_t index, const AnswerParts& parts, std::string_view finish) -> Status {
        if (!begun[index]) {
          begun[index] = true;
          if (auto first = FirstChoice(job.form, index)) MR_TRY(send(Json::array({*std::move(first)}), std::nullopt));
          if (!job.echo(index).empty()) MR_TRY(piece(index, job.echo(index), {}));
        }
        if (!parts.text.empty()) MR_TRY(piece(index, parts.text, {}));
        for (const ToolCallPart& call : parts.calls) MR_TRY(piece(index, "", {&call, 1}));
        if (finish.empty()) return {};
        Json last = Choice(job.form, /*chunk=*/true, {.index = index, .text = "", .finish = finish});
        return send(Json::array({std::move(last)}), std::nullopt);
      });
  if (!made) {
    if (!response.started()) return made;
    // The status line is out: the error travels as an event, for those who still listen.
    (void)response.Write(AsBytes(ServerSentEvent(ToApiError(made.error()).ToJson())));
    (void)response.Finish();
    return made;
  }
  if (job.options.include_usage) MR_TRY(send(Json::array(), job.usage));
  MR_TRY(response.Write(AsBytes(kStreamEnd)));
  return response.Finish();
}

void Api::Count(int status) {
  registry_.AddCounter("millrace_requests_total", "Requests answered", {{"status", std::to_string(status)}}).Add();
}

void Api::SendJson(http::ServerResponse& response, int status, const Json& body) {
  Count(status);
  // A client that has gone needs no answer.
  (void)response.Send(status, ContentType("application/json"), AsBytes(DumpJson(body)));
}

void Api::SendError(http::ServerResponse& response, const ApiError& error) {
  Count(error.status);
  http::Headers headers = ContentType("application/json");
  if (error.status == 429) headers.Set("Retry-After", "1");
  if (error.status == 401) headers.Set("WWW-Authenticate", "Bearer");
  (void)response.Send(error.status, std::move(headers), AsBytes(DumpJson(error.ToJson())));
}

void Api::SendHealth(http::ServerResponse& response) {
  bool draining = draining_.load(std::memory_order_relaxed);
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

/// Raises counters to those of the scheduler and of the adapters.
void Api::RaiseCounters() {
  const auto raise = [](metrics::Counter& counter, std::uint64_t to) {
    counter.Add(to - std::min(to, counter.value()));
  };
  MutexLock lock(raising_);
  const SchedulerCounters counters = scheduler_.counters();
  raise(metrics_.shared_tokens, counters.shared_tokens);
  raise(metrics_.preemptions, counters.preemptions);
  raise(metrics_.drafted_tokens, counters.drafted_tokens);
  raise(metrics_.accepted_tokens, counters.accepted_tokens);
  raise(metrics_.failed_drafts, counters.failed_drafts);
  if (options_.follower != nullptr) {
    const FollowCounters followed = options_.follower->counters();
    raise(metrics_.reloads, followed.reloads);
    raise(metrics_.failed_reloads, followed.failed_reloads);
    metrics_.model_step.Set(static_cast<double>(followed.step));
  }
  if (options_.adapters == nullptr) return;
  const AdapterCounters adapters = options_.adapters->counters();
  raise(metrics_.adapter_loads, adapters.loads);
  raise(metrics_.adapter_failures, adapters.failed_loads);
  raise(metrics_.adapter_evictions, adapters.evictions);
  metrics_.adapters.Set(adapters.loaded);
  metrics_.adapter_bytes.Set(static_cast<double>(adapters.bytes));
}

void Api::SendMetrics(http::ServerResponse& response) {
  metrics_.running.Set(scheduler_.running());
  metrics_.waiting.Set(scheduler_.waiting());
  const SchedulerCounters counters = scheduler_.counters();
  metrics_.cache_blocks_used.Set(counters.used_blocks);
  metrics_.cache_blocks.Set(counters.all_blocks);
  RaiseCounters();
  Count(200);
  std::string text = registry_.PrometheusText();
  (void)response.Send(200, ContentType("text/plain; version=0.0.4"), AsBytes(text));
}

}  // namespace millrace::serve
