// The HTTP interface of a served model.
//
//   GET  /                     the chat page
//   POST /v1/chat/completions  /v1/completions   OpenAI's, with "stream": true as server-sent events
//   POST /v1/responses                           OpenAI's, with "stream": true as events
//   POST /v1/messages  /v1/messages/count_tokens Anthropic's, with "stream": true as events
//   POST /v1/embeddings                          OpenAI's
//   POST /tokenize  /detokenize                  vLLM's
//   GET  /v1/models  /v1/models/NAME
//   POST /invocations  GET /ping                 SageMaker's
//   GET  /health                                 200, or 503 while the server drains
//   GET  /metrics                                Prometheus
//
// HEAD is answered where GET is.
//
// With keys, all but /, /ping and /health want `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/cors.h"
#include "millrace/http/server/server.h"
#include "millrace/metrics/metrics.h"
#include "millrace/serve/api/api_metrics.h"
#include "millrace/serve/api/completion.h"
#include "millrace/serve/api/response_store.h"
#include "millrace/serve/api/text_forms.h"
#include "millrace/serve/chat/chat_template.h"
#include "millrace/serve/models/adapter_store.h"
#include "millrace/serve/models/model_follower.h"
#include "millrace/serve/models/served_scheduler.h"
#include "millrace/serve/page/chat_page.h"
#include "millrace/serve/protocol/request.h"
#include "millrace/serve/scheduler.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// Answers requests. Handle is an http::Handler. Thread-safe. A request blocks its connection's thread until its text
/// is generated. The scheduler limits how many texts run or wait; beyond that the answer is 429 with Retry-After. A
/// client that disconnects cancels its texts.
class Api {
 public:
  struct Options {
    std::string model_name;                       ///< what requests call the model
    int context_length = 0;                       ///< tokens, prompt included
    bool generates = true;                        ///< texts; else only embeddings
    bool add_bos = false;                         ///< text prompts start with the tokenizer's beginning-of-text token
    bool embeds_bos = false, embeds_eos = false;  ///< the tokens around texts that are embedded
    std::vector<TokenId> ends;                    ///< tokens that end a text
    bool fixed_add_bos = false;                   ///< adapters start prompts as `add_bos` says, too
    const ModelFollower* follower = nullptr;      ///< for the metrics; borrowed; null: the model stays
    AdapterStore* adapters = nullptr;  ///< those that requests may choose as their model; borrowed; null: none
    std::shared_ptr<const ChatTemplate> chat = {};  ///< null: the model takes no conversations
    RequestLimits limits;
    http::ApiKeys keys;  ///< who may ask; none: everybody
    bool page = true;    ///< serve the chat page
    /// Without keys, refuse requests that web pages of other sites make a browser send (http::SiteOf).
    bool own_site_only = true;
    http::AllowedOrigins origins = {};  ///< their pages may send requests all the same
    std::string scheme = "http";        ///< of the server's URLs
    std::uint64_t max_body_bytes = 4 * kMiB;
    Duration max_wait = {};  ///< that a request waits for its turn; 0: no limit
    Duration max_time = {};  ///< from a request to the end of its texts; 0: no limit
    Logger log;
  };
  /// REQUIRES: `scheduler`, `tokenizer` and `clock` outlive this object.
  Api(ServedScheduler& scheduler, const tokenizer::Tokenizer& tokenizer, Clock& clock, Options options);

  void Handle(http::ServerRequest& request, http::ServerResponse& response);
  /// From now on /health and /ping answer 503, so that load balancers choose other servers, and so do new requests.
  /// Requests under way are answered. Blocks until then, or until `deadline`.
  void Drain(TimePoint deadline) MR_EXCLUDES(drain_mutex_);

 private:
  /// The reader of a path's requests.
  using Parse = std::function<Parsed<AnyRequest>(const Json& body, const RequestLimits& limits)>;

  /// Returns whether a request may begin, which EndRequest() then ends.
  bool BeginRequest() MR_EXCLUDES(drain_mutex_);
  void EndRequest() MR_EXCLUDES(drain_mutex_);
  void Post(http::ServerRequest& request, http::ServerResponse& response);
  /// Answers /v1/responses, and keeps the conversation.
  void Respond(http::ServerRequest& request, http::ServerResponse& response, const Json& body);
  /// `chat`: the form of the answer to a conversation.
  void Complete(http::ServerRequest& request, http::ServerResponse& response, const Json& body, const Parse& parse,
                AnswerForm chat = AnswerForm::kChat);
  void CountMessageTokens(http::ServerRequest& request, http::ServerResponse& response, const Json& body);
  void Tokenize(http::ServerRequest& request, http::ServerResponse& response, const Json& body);
  void Detokenize(http::ServerResponse& response, const Json& body);
  /// Returns the tokens of a text, or of a conversation by its template.
  Parsed<std::vector<TokenId>> PromptOf(const Json& body, std::stop_token stop) const;
  void Embed(http::ServerRequest& request, http::ServerResponse& response, const Json& body);
  /// Returns the end of a time that begins then; no time: never.
  static TimePoint After(TimePoint begin, Duration time);
  /// Returns whose request it is, for the scheduler.
  int UserOf(http::ServerRequest& request) const;
  Parsed<Json> ReadBody(http::ServerRequest& request) const;
  Parsed<CompletionJob> Admit(AnyRequest request, TimePoint arrived, int user, std::stop_token stop);
  /// Returns the texts that a job asks the scheduler for: `common`, with the prompts, lengths and seeds of the job.
  Parsed<std::vector<GenerationRequest>> RequestTexts(const CompletionJob& job, const GenerationRequest& common) const;
  /// Returns the adapter that a request's model is; null for the served model itself.
  Parsed<std::shared_ptr<const Adapter>> ChooseAdapter(const std::string& model, std::stop_token stop) const;
  bool AddsBos(const Adapter* adapter) const;
  Parsed<CompletionJob> Describe(const CompletionRequest& request, AnswerForm form, const Adapter* adapter) const;
  Parsed<CompletionJob> Describe(const ChatRequest& request, const Adapter* adapter) const;
  /// Returns `ids` if all are of the vocabulary.
  Parsed<std::vector<TokenId>> KnownTokens(const std::vector<TokenId>& ids, std::string_view param) const;
  Parsed<std::vector<TokenId>> Tokens(const Prompt& prompt, const CompletionRequest& request,
                                      const Adapter* adapter) const;
  Parsed<std::vector<TokenId>> EmbeddingTokens(const Prompt& input) const;

  void SendJson(http::ServerResponse& response, int status, const Json& body);
  void SendError(http::ServerResponse& response, const ApiError& error, AnswerForm form = AnswerForm::kChat);
  void SendHealth(http::ServerResponse& response);
  void SendModels(http::ServerRequest& request, http::ServerResponse& response, std::string_view name);
  void SendMetrics(http::ServerResponse& response);
  ApiError NoSuchModel(std::string_view wanted, bool has_adapters = false) const;
  Json ModelEntry(const std::string& name) const;
  void Count(int status);

  ServedScheduler& scheduler_;
  const tokenizer::Tokenizer& tokenizer_;
  TextForms forms_{tokenizer_};
  ResponseStore responses_{64 * kMiB};
  Clock& clock_;
  const Options options_;
  const std::int64_t created_;
  metrics::Registry registry_;
  ApiMetrics metrics_{registry_};
  const ChatPage page_;
  Mutex drain_mutex_;
  CondVar one_answered_;
  bool draining_ MR_GUARDED_BY(drain_mutex_) = false;
  int under_way_ MR_GUARDED_BY(drain_mutex_) = 0;  ///< requests of POST
};

}  // namespace millrace::serve
