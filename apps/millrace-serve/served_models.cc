#include "apps/millrace-serve/served_models.h"

#include <utility>

#include "millrace/base/text.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/object/location.h"

namespace millrace::cli {

void AddModelFlags(CLI::App& app, ModelFlags& flags) {
  app.add_option("--draft", flags.draft_url,
                 "URL of a small model with the same tokenizer. It guesses what texts say next, and the model computes "
                 "right guesses at once; texts stay the same");
  app.add_flag("--follow", flags.follow,
               "Serve newer checkpoints of the run as they are committed. Requests under way end with the old one, so "
               "two models are in memory meanwhile");
  app.add_option("--follow-every", flags.follow_every, "How often --follow looks")->capture_default_str();
}

Result<serve::LoadedModel> ModelLoader::LoadDraft(const serve::LoadedModel& loaded, const object::Call& call) const {
  serve::LoadOptions options = options_;
  options.model_url = flags_.draft_url;
  options.step.reset();
  options.kv_cache_bytes = 0;
  auto draft = MR_TRY(serve::LoadModel(connection_, options, log_, call));
  if (!draft.generates) {
    return Fail(Code::kUnsupported, "--draft: {} makes embeddings and no texts", draft.source);
  }
  if (draft.tokenizer->fingerprint() != loaded.tokenizer->fingerprint() ||
      draft.model->vocab_size() != loaded.model->vocab_size()) {
    return Fail(Code::kPreconditionFailed,
                "--draft: the tokenizer of {} ({}) is not that of {} ({}); a draft model has the same tokens",
                draft.source, draft.tokenizer->fingerprint(), loaded.source, loaded.tokenizer->fingerprint());
  }
  return draft;
}

Result<ServedModel> ModelLoader::Load(std::optional<std::uint64_t> step, const object::Call& call) const {
  struct Models {
    std::unique_ptr<serve::LanguageModel> model, draft;
    std::optional<serve::Scheduler> scheduler;  // destroyed before the models
  };
  serve::LoadOptions options = options_;
  if (step) options.step = step;
  auto loaded = MR_TRY(serve::LoadModel(connection_, options, log_, call));
  auto models = std::make_shared<Models>();
  if (!flags_.draft_url.empty()) {
    auto draft = MR_TRY(LoadDraft(loaded, call));
    models->draft = std::move(draft.model);
  }
  models->model = std::move(loaded.model);
  models->scheduler.emplace(*models->model, scheduling_, models->draft.get());
  ServedModel served{.scheduler = {models, &*models->scheduler},
                     .facts = std::move(loaded),
                     .context_length = models->model->context_length(),
                     .vocab_size = models->model->vocab_size()};
  return served;
}

Result<std::unique_ptr<serve::ModelFollower>> ModelLoader::Follow(const ServedModel& first,
                                                                  serve::ServedScheduler& served) const {
  if (!flags_.follow) return nullptr;
  if (options_.step)
    return Fail(Code::kInvalidArgument, "--follow serves the newest checkpoint, and --step one of them");
  if (!first.facts.step) {
    return Fail(Code::kInvalidArgument, "--follow wants a run, and {} is a folder or a file without checkpoints",
                first.facts.source);
  }
  const auto every = ParseDuration(flags_.follow_every);
  if (!every || *every <= Duration::zero()) {
    return Fail(Code::kInvalidArgument, "--follow-every {}: give a duration above 0, such as 30s", flags_.follow_every);
  }
  const auto find = [this](std::stop_token stop) -> Result<std::optional<std::uint64_t>> {
    const object::Location root = MR_TRY(object::Locate(connection_, options_.model_url));
    const auto all = MR_TRY(checkpoint::ListCheckpoints(root, {.stop = std::move(stop), .deadline = {}}));
    return all.empty() ? std::nullopt : std::optional(all.back().step);
  };
  const auto load = [this, tokens = first.facts.tokenizer->fingerprint(), vocabulary = first.vocab_size,
                     context = first.context_length](
                        std::uint64_t step, std::stop_token stop) -> Result<std::shared_ptr<serve::Scheduler>> {
    auto next = MR_TRY(Load(step, {.stop = std::move(stop), .deadline = {}}));
    if (next.facts.tokenizer->fingerprint() != tokens || next.vocab_size != vocabulary ||
        next.context_length != context) {
      return Fail(
          Code::kPreconditionFailed,
          "{} has another tokenizer, vocabulary or context than the model that is served; start the server anew",
          next.facts.source);
    }
    return std::move(next.scheduler);
  };
  return std::make_unique<serve::ModelFollower>(
      served, *first.facts.step, SystemClock(),
      serve::ModelFollower::Options{.every = *every, .find_newest = find, .load = load, .log = log_});
}

}  // namespace millrace::cli
