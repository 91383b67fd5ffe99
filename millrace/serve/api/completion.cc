#include "millrace/serve/api/completion.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <type_traits>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/api_error.h"
#include "millrace/serve/protocol/messages.h"
#include "millrace/serve/protocol/responses.h"

namespace millrace::serve {
namespace {

Status StartEvents(http::ServerResponse& response) {
  http::Headers headers = http::ContentType("text/event-stream; charset=utf-8");
  headers.Set("Cache-Control", "no-cache");
  headers.Set("X-Accel-Buffering", "no");  // nginx would hold the events back
  return response.Start(200, std::move(headers), std::nullopt);
}

Status SendBody(http::ServerResponse& response, const Json& body) {
  return response.Send(200, http::ContentType("application/json"), AsBytes(DumpJson(body)));
}

}  // namespace

CompletionAnswer::CompletionAnswer(CompletionJob& job, const tokenizer::Tokenizer& tokenizer, ApiMetrics& metrics,
                                   Clock& clock)
    : job_(job), tokenizer_(tokenizer), metrics_(metrics), clock_(clock) {
  for (const Generation& generation : job.generations) {
    texts_.push_back(
        {TextMaker(tokenizer_, generation.request().prompt, job.options.stops, job.Calls(), job.tool_choice.parallel)});
  }
}

Status CompletionAnswer::Send(http::ServerRequest& request, http::ServerResponse& response) {
  if (!job_.options.stream) return Collect(request, response);
  if (job_.form == AnswerForm::kMessages) return StreamEvents(MessageEvents(job_.head), request, response);
  if (job_.form == AnswerForm::kResponses) {
    return StreamEvents(ResponseEvents(job_.head, job_.echoed), request, response);
  }
  return Stream(request, response);
}

std::string CompletionAnswer::TokenText(TokenId token) const {
  // A token within a text: one that begins a word keeps its space.
  tokenizer::DecodeState within{.begun = true};
  std::string text;
  if (!tokenizer_.DecodeNext(within, token, text)) return text;
  tokenizer_.DecodeEnd(within, text);
  return text.empty() ? tokenizer_.Piece(token).value_or("") : text;
}

TokenLogprobs CompletionAnswer::Logprobs(const SampledToken& token) const {
  TokenLogprobs told{.text = TokenText(token.token), .logprob = token.logprob};
  for (const TokenLogprob& each : token.likeliest) told.likeliest.emplace_back(TokenText(each.token), each.logprob);
  return told;
}

std::vector<TokenLogprobs> CompletionAnswer::PromptLogprobs(std::size_t index) {
  if (!job_.tells_prompt) return {};
  std::vector<TokenLogprobs> told = {{.text = TokenText(job_.generations[index].request().prompt.front())}};
  for (const SampledToken& token : job_.generations[index].TakePromptTokens()) told.push_back(Logprobs(token));
  return told;
}

/// Counts the tokens of prompts that were not computed, each prompt once.
void CompletionAnswer::CountCached() {
  job_.usage.cached = 0;
  for (std::size_t i = 0; i < job_.generations.size(); i += static_cast<std::size_t>(job_.options.made_texts())) {
    job_.usage.cached += job_.generations[i].cached_tokens();
  }
}

Status CompletionAnswer::TakeToken(std::size_t index, const SampledToken& token, const Emit& emit) {
  AnswerText& text = texts_[index];
  if (!std::exchange(job_.first_token_seen, true))
    metrics_.first_token_s.Observe(SecondsOf(clock_.Now() - job_.arrived));
  ++job_.usage.completion;
  ++text.tokens;
  text.logprob_sum += token.logprob;
  metrics_.generated_tokens.Add();
  if (job_.options.sampling.logprobs) text.logprobs.push_back(Logprobs(token));
  const AnswerParts parts = MR_TRY(text.maker.Add(token.token));
  if (!parts.empty()) MR_TRY(emit(index, parts, ""));
  return {};
}

Status CompletionAnswer::EndText(std::size_t index, const Emit& emit) {
  AnswerText& text = texts_[index];
  text.has_ended = true;
  Generation& generation = job_.generations[index];
  std::string finish = "stop";
  if (text.maker.stopped()) {
    generation.Cancel();
  } else if (MR_TRY(generation.result()) == FinishReason::kLength) {
    finish = "length";
  }
  const AnswerParts rest = MR_TRY(text.maker.Finish());
  if (text.maker.stopped()) finish = "stop";
  // As OpenAI's, a text whose function was named stops.
  const bool tells_calls = job_.tool_choice.kind != ToolChoice::Kind::kNamed;
  if (finish == "stop" && text.maker.calls() && tells_calls) finish = "tool_calls";
  return emit(index, rest, finish);
}

Status CompletionAnswer::MakeTexts(std::stop_token stop, const Emit& emit) {
  const Generation& any = job_.generations.front();
  for (std::size_t open = texts_.size(); open > 0;) {
    const std::uint64_t seen = any.news();
    bool is_idle = true;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i].has_ended) continue;
      // In this order: tokens come before the end.
      const bool has_ended = job_.generations[i].has_ended();
      const auto token = job_.generations[i].TryNext();
      if (!token && !has_ended) continue;
      is_idle = false;
      // One token of each text, so that none waits for another.
      if (token) MR_TRY(TakeToken(i, *token, emit));
      if (token && !texts_[i].maker.stopped()) continue;
      if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
      MR_TRY(EndText(i, emit));
      --open;
    }
    if (is_idle) any.AwaitNews(seen, stop);
    if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
  }
  return {};
}

std::vector<std::size_t> CompletionAnswer::ChooseTexts() const {
  const auto made = static_cast<std::size_t>(job_.options.made_texts()),
             wanted = static_cast<std::size_t>(job_.options.texts);
  std::vector<std::size_t> chosen;
  for (std::size_t first = 0; first < texts_.size(); first += made) {
    std::vector<std::size_t> order(made);
    std::iota(order.begin(), order.end(), first);
    if (made > wanted) {
      std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
        const double first_score = texts_[a].Score(), second_score = texts_[b].Score();
        return first_score != second_score ? first_score > second_score : a < b;
      });
    }
    chosen.insert(chosen.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted));
  }
  return chosen;
}

Status CompletionAnswer::Collect(http::ServerRequest& request, http::ServerResponse& response) {
  struct Whole {
    std::string text, finish;
    std::vector<ToolCallPart> calls;
    std::vector<TokenLogprobs> logprobs;
  };
  std::vector<Whole> answers(texts_.size());
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i].text = job_.echo(i);
  MR_TRY(MakeTexts(request.stop(), [&](std::size_t index, const AnswerParts& parts, std::string_view finish) -> Status {
    Whole& whole = answers[index];
    whole.text += parts.text;
    whole.finish = finish;
    for (const ToolCallPart& part : parts.calls) {
      if (part.index == whole.calls.size()) whole.calls.push_back(part);
      if (part.id.empty()) whole.calls[part.index].arguments += part.arguments;
    }
    if (parts.empty()) return {};  // tokens of a stop string
    std::ranges::move(texts_[index].logprobs, std::back_inserter(whole.logprobs));
    texts_[index].logprobs.clear();
    return {};
  }));
  CountCached();
  const AnswerPiece first{.text = answers[0].text, .calls = answers[0].calls, .finish = answers[0].finish};
  if (job_.form == AnswerForm::kMessages) return SendBody(response, MessagesAnswer(job_.head, first, job_.usage));
  if (job_.form == AnswerForm::kResponses) {
    const Json body = ResponseAnswer(job_.head, job_.echoed, first, job_.usage);
    if (job_.messages.is_array()) job_.messages.push_back(ResponseMessage(body["output"]));
    return SendBody(response, body);
  }
  Json choices = Json::array();
  for (const std::size_t i : ChooseTexts()) {
    std::vector<TokenLogprobs> prompt = PromptLogprobs(i);
    answers[i].logprobs.insert(answers[i].logprobs.begin(), std::make_move_iterator(prompt.begin()),
                               std::make_move_iterator(prompt.end()));
    choices.push_back(Choice(job_.form, /*chunk=*/false,
                             {.index = choices.size(),
                              .text = answers[i].text,
                              .logprobs = job_.options.sampling.logprobs ? &answers[i].logprobs : nullptr,
                              .calls = answers[i].calls,
                              .finish = answers[i].finish}));
  }
  return SendBody(response, Answer(job_.form, /*chunk=*/false, job_.head, std::move(choices), job_.usage));
}

template <class Events>
Status CompletionAnswer::StreamEvents(Events events, http::ServerRequest& request, http::ServerResponse& response) {
  const Status made =
      MakeTexts(request.stop(), [&](std::size_t, const AnswerParts& parts, std::string_view finish) -> Status {
        std::string out;
        CountCached();
        if (!response.started()) {
          MR_TRY(StartEvents(response));
          out = events.Begin(job_.usage);
        }
        if (!parts.text.empty()) out += events.Text(parts.text);
        for (const ToolCallPart& call : parts.calls) out += events.Call(call);
        if (!finish.empty()) out += events.End(finish, job_.usage);
        return response.Write(AsBytes(out));
      });
  if (!made && !response.started()) return made;
  if constexpr (std::is_same_v<Events, ResponseEvents>) {
    if (made && job_.messages.is_array()) {
      job_.messages.push_back(ResponseMessage(events.Response("completed", job_.usage)["output"]));
    }
  }
  if (!made) (void)response.Write(AsBytes(events.Failure(ToApiError(made.error()))));
  const Status finished = response.Finish();
  return made ? finished : made;
}

Status CompletionAnswer::Stream(http::ServerRequest& request, http::ServerResponse& response) {
  const auto send = [&](Json choices, const std::optional<Usage>& usage) -> Status {
    if (!response.started()) MR_TRY(StartEvents(response));
    return response.Write(
        AsBytes(ServerSentEvent(Answer(job_.form, /*chunk=*/true, job_.head, std::move(choices), usage))));
  };
  std::vector<std::size_t> offsets(texts_.size());
  std::vector<bool> begun(texts_.size());
  const auto piece = [&](std::size_t index, std::string_view text, std::span<const ToolCallPart> calls,
                         std::vector<TokenLogprobs>& logprobs) -> Status {
    const bool tells = job_.options.sampling.logprobs.has_value();
    Json choice = Choice(job_.form, /*chunk=*/true,
                         {.index = index,
                          .text = text,
                          .logprobs = tells && !logprobs.empty() ? &logprobs : nullptr,
                          .calls = calls,
                          .text_offset = offsets[index],
                          .finish = ""});
    logprobs.clear();
    offsets[index] += CountCodePoints(text);
    return send(Json::array({std::move(choice)}), std::nullopt);
  };
  const Status made =
      MakeTexts(request.stop(), [&](std::size_t index, const AnswerParts& parts, std::string_view finish) -> Status {
        if (!begun[index]) {
          begun[index] = true;
          if (auto first = FirstChoice(job_.form, index)) MR_TRY(send(Json::array({*std::move(first)}), std::nullopt));
          std::vector<TokenLogprobs> prompt = PromptLogprobs(index);
          if (!job_.echo(index).empty()) MR_TRY(piece(index, job_.echo(index), {}, prompt));
        }
        std::vector<TokenLogprobs>& logprobs = texts_[index].logprobs;
        if (!parts.text.empty()) MR_TRY(piece(index, parts.text, {}, logprobs));
        for (const ToolCallPart& call : parts.calls) MR_TRY(piece(index, "", {&call, 1}, logprobs));
        if (finish.empty()) return {};
        Json last = Choice(job_.form, /*chunk=*/true, {.index = index, .text = "", .finish = finish});
        return send(Json::array({std::move(last)}), std::nullopt);
      });
  if (!made) {
    if (!response.started()) return made;
    // The status line is out: the error travels as an event, for those who still listen.
    (void)response.Write(AsBytes(ServerSentEvent(ToApiError(made.error()).ToJson())));
    (void)response.Finish();
    return made;
  }
  CountCached();
  if (job_.options.include_usage) MR_TRY(send(Json::array(), job_.usage));
  MR_TRY(response.Write(AsBytes(kStreamEnd)));
  return response.Finish();
}

}  // namespace millrace::serve
