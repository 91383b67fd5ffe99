#include "millrace/jobs/spec/spec.h"

#include "millrace/base/config.h"
#include "millrace/jobs/spec/spec_checks.h"
#include "millrace/jobs/spec/spec_printer.h"
#include "millrace/jobs/spec/spec_reader.h"

namespace millrace::jobs {

Result<Spec> Spec::Parse(std::string_view yaml, std::string file_name, const std::vector<std::string>& overrides,
                         SpecPurpose purpose) {
  config::Document document = MR_TRY(config::Document::Parse(yaml, std::move(file_name)));
  for (const std::string& assignment : overrides) MR_TRY(document.Set(assignment));
  config::Node root = document.Root();

  Spec spec;
  Status status;
  // The keys of `data` depend on the objective, which stands behind them. A wrong word is refused where it is read.
  if (auto objective = root["train"]["objective"].String()) {
    spec.data.dataset.objective = data::ParseObjective(*objective).value_or(data::Objective::kCausalLm);
  }
  // With a command of the user's own, there are no keys of ours for the training.
  const config::Node command = root["run"]["command"];
  if (command.IsSequence() && !command.Elements().empty()) spec.run.command.emplace_back();
  SpecReader reader(root, status);
  VisitSpec(reader, spec);
  reader.Finish();
  MR_TRY(std::move(status));

  MR_TRY(CheckSpec(root, spec, purpose));
  return spec;
}

Spec Spec::CompileJob() const {
  Spec job = *this;
  job.name += "-compile";
  job.train.compile = train::Compile::kOn;
  job.run.max_restarts = 0;
  return job;
}

int Spec::Classes() const {
  constexpr int kBinary = 2;
  const std::size_t named = data.dataset.classification.classes.size();
  return model.num_labels.value_or(named > 0 ? static_cast<int>(named) : kBinary);
}

std::string Spec::Render() const {
  std::string text;
  SpecPrinter printer(text, "");
  Spec copy = *this;
  VisitSpec(printer, copy);
  return text;
}

}  // namespace millrace::jobs
