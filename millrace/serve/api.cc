#include "millrace/serve/api.h"

#include <algorithm>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/serve/text_stream.h"

namespace millrace::serve {
namespace {

constexpr int kDefaultMaxTokens = 16;
/// Prompts may be lists of lists of token ids. A million values take some 16 MiB of memory.
constexpr JsonLimits kBodyLimits{.depth = 16, .values = 1024 * 1024};

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

ApiError NoSuchModel(std::string_view wanted, std::string_view served) {
  return {.status = 404,
          .message = fmt::format("the model \"{}\" does not exist here; this server has \"{}\"", wanted, served),
          .param = "model",
          .code = "model_not_found"};
}

ApiError NoKey() {
  return {.status = 401,
          .message = "this server wants a key that it knows, as `Authorization: Bearer KEY`",
          .code = "invalid_api_key"};
}

}  // namespace

struct Api::Job {
  AnswerHead head;
  CompletionRequest request;
  bool inputs_form = false;
  std::vector<Generation> generations;
  std::vector<std::string> echoes;  ///< the text of each prompt, where it is to be repeated
  Usage usage;
  TimePoint arrived;
  bool first_token_seen = false;
};

Api::Metrics::Metrics(metrics::Registry& registry)
    : prompt_tokens(registry.AddCounter("millrace_prompt_tokens_total", "Tokens of admitted prompts")),
      generated_tokens(registry.AddCounter("millrace_generated_tokens_total", "Tokens made")),
      cancelled(registry.AddCounter("millrace_requests_cancelled_total", "Requests whose client went away")),
      running(registry.AddGauge("millrace_generations_running", "Texts the model works on")),
      waiting(registry.AddGauge("millrace_generations_waiting", "Texts that wait for the model")),
      first_token_s(
          registry.AddHistogram("millrace_first_token_seconds", "From request to first token", kSecondsBuckets)),
      request_s(registry.AddHistogram("millrace_request_seconds", "From request to the end of its answer",
                                      kSecondsBuckets)) {}

Api::Api(Scheduler& scheduler, const tokenizer::Tokenizer& tokenizer, Clock& clock, Options options)
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
  for (Route route : {Route{"POST", "/v1/completions"}, Route{"POST", "/invocations"}, Route{"GET", kModels},
                      Route{"GET", "/ping"}, Route{"GET", "/health"}, Route{"GET", "/metrics"}}) {
    bool member = route.path == kModels && path.starts_with("/v1/models/");
    if (path != route.path && !member) continue;
    // Balancers and orchestrators ask these two without a key; the answer is a word.
    const bool is_open = path == "/ping" || path == "/health";
    if (!is_open && !options_.keys.Allow(request.headers())) return SendError(response, NoKey());
    if (method != route.method) {
      http::Headers headers = ContentType("application/json");
      headers.Set("Allow", std::string(route.method));
      ApiError error{.status = 405, .message = fmt::format("{} takes {}, not {}", path, route.method, method)};
      Count(error.status);
      (void)response.Send(error.status, std::move(headers), AsBytes(DumpJson(error.ToJson())));
      return;
    }
    if (route.method == "POST") return Complete(request, response, path == "/invocations");
    if (path == "/metrics") return SendMetrics(response);
    if (route.path == kModels) return SendModels(response, member ? path.substr(kModels.size() + 1) : "");
    return SendHealth(response);
  }
  SendError(response,
            {.status = 404, .message = fmt::format("no such resource: {} {}", method, path), .code = "not_found"});
}

void Api::Complete(http::ServerRequest& request, http::ServerResponse& response, bool invocation) {
  TimePoint arrived = clock_.Now();
  auto body = ReadBody(request, invocation);
  if (!body) return SendError(response, body.error());
  auto job = Admit(*std::move(body));
  if (!job) return SendError(response, job.error());
  job->arrived = arrived;
  Status done = job->request.stream ? Stream(*job, request, response) : Collect(*job, request, response);
  metrics_.request_s.Observe(Seconds(clock_.Now() - arrived));
  if (done) return Count(200);
  // A client's going shows as a failed write or as the stop token, whichever comes first.
  if (request.stop().stop_requested() || done.error().code() == Code::kUnavailable) metrics_.cancelled.Add();
  options_.log.Info("completion not delivered", {{"peer", request.peer()}, {"error", done.error()}});
  if (!response.started()) SendError(response, ToApiError(done.error()));
}

Parsed<Invocation> Api::ReadBody(http::ServerRequest& request, bool invocation) const {
  auto text = request.ReadAllBody(options_.max_body_bytes);
  if (!text && text.error().code() == Code::kResourceExhausted) {
    return std::unexpected(
        ApiError{.status = 413, .message = fmt::format("the body is larger than {} bytes", options_.max_body_bytes)});
  }
  if (!text) return std::unexpected(ToApiError(text.error()));
  auto body = ParseJson(*text, "the body", kBodyLimits);
  if (!body) return std::unexpected(ApiError{.message = body.error().ToString(), .code = "invalid_json"});
  if (invocation) return ParseInvocation(*body, options_.limits);
  auto parsed = ParseCompletion(*body, options_.limits);
  if (!parsed) return std::unexpected(std::move(parsed).error());
  return Invocation{*std::move(parsed), false};
}

/// Text becomes tokens here; an empty prompt is the place between two documents.
Parsed<std::vector<TokenId>> Api::Tokens(const Prompt& prompt) const {
  std::vector<TokenId> ids;
  if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
    for (TokenId id : *given) {
      if (id < tokenizer_.vocab_size()) continue;
      return std::unexpected(
          ApiError{.message = fmt::format("token {} is outside the vocabulary of {}", id, tokenizer_.vocab_size()),
                   .param = "prompt"});
    }
    return *given;
  }
  if (options_.add_bos && tokenizer_.bos() != tokenizer::kNoToken) ids.push_back(tokenizer_.bos());
  if (auto encoded = tokenizer_.Encode(std::get<std::string>(prompt), ids); !encoded) {
    return std::unexpected(ToApiError(encoded.error()));
  }
  if (ids.empty()) ids.push_back(tokenizer_.eos() != tokenizer::kNoToken ? tokenizer_.eos() : 0);
  return ids;
}

Parsed<Api::Job> Api::Admit(Invocation invocation) {
  Job job{.request = std::move(invocation.request), .inputs_form = invocation.inputs_form};
  CompletionRequest& request = job.request;
  if (!request.model.empty() && request.model != options_.model_name) {
    return std::unexpected(NoSuchModel(request.model, options_.model_name));
  }
  std::vector<GenerationRequest> generations;
  for (const Prompt& prompt : request.prompts) {
    auto tokens = Tokens(prompt);
    if (!tokens) return std::unexpected(std::move(tokens).error());
    int room = options_.context_length - static_cast<int>(std::min<std::size_t>(tokens->size(), 1 << 30));
    if (room < request.max_tokens.value_or(1)) {
      return std::unexpected(ApiError{
          .message = fmt::format("the prompt has {} tokens and max_tokens is {}, but the model's context is {} tokens",
                                 tokens->size(), request.max_tokens.value_or(1), options_.context_length),
          .param = "prompt",
          .code = "context_length_exceeded"});
    }
    SamplingOptions sampling = request.sampling;
    // Several prompts of one seed draw differently, but the same again in the same request.
    sampling.seed = (request.seed_given ? sampling.seed : SystemEntropy()) + generations.size();
    if (request.echo) {
      const auto* text = std::get_if<std::string>(&prompt);
      auto decoded = text != nullptr ? Result<std::string>(*text) : tokenizer_.Decode(*tokens);
      if (!decoded) return std::unexpected(ToApiError(decoded.error()));
      job.echoes.push_back(*std::move(decoded));
    }
    job.usage.prompt += static_cast<std::int64_t>(tokens->size());
    generations.push_back(
        {.prompt = *std::move(tokens),
         .max_tokens = request.max_tokens.value_or(std::min({kDefaultMaxTokens, room, options_.limits.max_tokens})),
         .end = tokenizer_.eos(),
         .sampling = sampling});
  }
  auto admitted = scheduler_.Submit(std::move(generations));
  if (!admitted) return std::unexpected(ToApiError(admitted.error()));
  job.generations = *std::move(admitted);
  job.head = {"cmpl-" + SecureHex(12), UnixSeconds(clock_.Wall()), options_.model_name};
  metrics_.prompt_tokens.Add(static_cast<std::uint64_t>(job.usage.prompt));
  return job;
}

template <class Emit>
Result<std::string> Api::MakeText(Job& job, std::size_t index, std::stop_token stop, Emit emit) {
  Generation& generation = job.generations[index];
  Detokenizer detokenizer(tokenizer_, generation.request().prompt);
  StopMatcher matcher(job.request.stops);
  while (!matcher.stopped()) {
    auto token = generation.Next(stop);
    if (!token) break;
    if (!std::exchange(job.first_token_seen, true)) metrics_.first_token_s.Observe(Seconds(clock_.Now() - job.arrived));
    ++job.usage.completion;
    metrics_.generated_tokens.Add();
    MR_TRY(emit(matcher.Add(MR_TRY(detokenizer.Add(*token)))));
  }
  if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
  std::string finish = "stop";
  if (matcher.stopped()) {
    generation.Cancel();
  } else {
    MR_TRY(emit(matcher.Add(MR_TRY(detokenizer.Finish()))));
    MR_TRY(emit(matcher.Finish()));
    if (MR_TRY(generation.result()) == FinishReason::kLength && !matcher.stopped()) finish = "length";
  }
  return finish;
}

Status Api::Collect(Job& job, http::ServerRequest& request, http::ServerResponse& response) {
  Json choices = Json::array(), texts = Json::array();
  for (std::size_t i = 0; i < job.generations.size(); ++i) {
    std::string text = job.request.echo ? job.echoes[i] : "";
    auto append = [&text](const std::string& piece) -> Status {
      text += piece;
      return {};
    };
    std::string finish = MR_TRY(MakeText(job, i, request.stop(), append));
    texts.push_back({{"generated_text", text}});
    choices.push_back(Choice(i, text, finish));
  }
  Json body = job.inputs_form ? std::move(texts) : Answer(job.head, std::move(choices), job.usage);
  return response.Send(200, ContentType("application/json"), AsBytes(DumpJson(body)));
}

Status Api::Stream(Job& job, http::ServerRequest& request, http::ServerResponse& response) {
  http::Headers headers = ContentType("text/event-stream; charset=utf-8");
  headers.Set("Cache-Control", "no-cache");
  MR_TRY(response.Start(200, std::move(headers), std::nullopt));
  auto send = [&](Json choices, const std::optional<Usage>& usage) {
    return response.Write(AsBytes(ServerSentEvent(Answer(job.head, std::move(choices), usage))));
  };
  for (std::size_t i = 0; i < job.generations.size(); ++i) {
    auto emit = [&](const std::string& piece) -> Status {
      return piece.empty() ? Status() : send(Json::array({Choice(i, piece, "")}), std::nullopt);
    };
    if (job.request.echo) MR_TRY(emit(job.echoes[i]));
    auto finish = MakeText(job, i, request.stop(), emit);
    if (!finish) {
      // The status line is out: the error travels as an event, for those who still listen.
      (void)response.Write(AsBytes(ServerSentEvent(ToApiError(finish.error()).ToJson())));
      (void)response.Finish();
      return std::unexpected(finish.error());
    }
    MR_TRY(send(Json::array({Choice(i, "", *finish)}), std::nullopt));
  }
  if (job.request.include_usage) MR_TRY(send(Json::array(), job.usage));
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

Json Api::ModelEntry() const {
  return {{"id", options_.model_name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "millrace"},
          {"max_model_len", options_.context_length}};
}

void Api::SendModels(http::ServerResponse& response, std::string_view name) {
  if (name.empty()) return SendJson(response, 200, {{"object", "list"}, {"data", Json::array({ModelEntry()})}});
  auto decoded = PercentDecode(name);
  if (decoded && *decoded == options_.model_name) return SendJson(response, 200, ModelEntry());
  SendError(response, NoSuchModel(decoded.value_or(std::string(name)), options_.model_name));
}

void Api::SendMetrics(http::ServerResponse& response) {
  metrics_.running.Set(scheduler_.running());
  metrics_.waiting.Set(scheduler_.waiting());
  Count(200);
  std::string text = registry_.PrometheusText();
  (void)response.Send(200, ContentType("text/plain; version=0.0.4"), AsBytes(text));
}

}  // namespace millrace::serve
