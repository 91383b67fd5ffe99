// Loads the models behind `millrace serve`: the served model, the draft model of speculative decoding, and newer
// checkpoints of the same run.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"
#include "millrace/object/store.h"
#include "millrace/serve/engine/engine_model.h"
#include "millrace/serve/models/model_follower.h"
#include "millrace/serve/models/served_scheduler.h"

namespace millrace::cli {

struct ModelFlags {
  std::string draft_url, follow_every = "30s";
  bool follow = false;
};

void AddModelFlags(CLI::App& app, ModelFlags& flags);

/// A model that is ready to be served.
struct ServedModel {
  std::shared_ptr<serve::Scheduler> scheduler;  ///< owns the model and its draft model
  serve::LoadedModel facts;                     ///< without its `model`
  int context_length = 0, vocab_size = 0;
};

/// Loads models of one URL with one set of options. Borrows the connection.
class ModelLoader {
 public:
  ModelLoader(object::Connection& connection, serve::LoadOptions options, ModelFlags flags,
              serve::Scheduler::Options scheduling, Logger log)
      : connection_(connection),
        options_(std::move(options)),
        flags_(std::move(flags)),
        scheduling_(scheduling),
        log_(std::move(log)) {}

  /// Loads the checkpoint of `step`. Without a step, loads the model that the options name. Blocks. Errors: those of
  /// LoadModel(); kPreconditionFailed if the draft model has other tokens; kUnsupported if the model makes no texts.
  Result<ServedModel> Load(std::optional<std::uint64_t> step, const object::Call& call) const;
  /// If the flags ask for it, serves each newer checkpoint of the run after `first`; otherwise returns null. This
  /// object must outlive the follower. Errors: kInvalidArgument if the model does not come from a run, or if a flag is
  /// wrong.
  Result<std::unique_ptr<serve::ModelFollower>> Follow(const ServedModel& first, serve::ServedScheduler& served) const;

 private:
  Result<serve::LoadedModel> LoadDraft(const serve::LoadedModel& loaded, const object::Call& call) const;

  object::Connection& connection_;
  const serve::LoadOptions options_;
  const ModelFlags flags_;
  const serve::Scheduler::Options scheduling_;
  const Logger log_;
};

}  // namespace millrace::cli
