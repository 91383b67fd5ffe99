#include "apps/millrace/jobs/hub_revisions.h"

#include <map>
#include <memory>

#include "apps/common/output.h"
#include "millrace/object/open/open.h"

namespace millrace::cli {
namespace {

class Pinner {
 public:
  Pinner(const Context& context, const std::string& job) : context_(context), job_(job) {}

  /// `text`: a URL, perhaps with the '@' of a list before it and the '#' of a split behind it.
  Status Pin(std::string& text) {
    const std::size_t begin = text.starts_with('@') ? 1 : 0, end = std::min(text.find('#'), text.size());
    if (!std::string_view(text).substr(begin).starts_with("hf://")) return {};
    object::Url url = MR_TRY(object::ParseUrl(std::string_view(text).substr(begin, end - begin)));
    std::string& pinned = pinned_[url.bucket];
    if (pinned.empty()) {
      if (!connection_) connection_ = MR_TRY(context_.Connect());
      pinned = MR_TRY(connection_->Pin(url, {.stop = context_.stop})).bucket;
      if (pinned != url.bucket && !context_.globals.quiet) {
        PrintError("millrace: job {}: reads hf://{} at {}\n", job_, url.bucket, pinned.substr(pinned.find('@') + 1));
      }
    }
    url.bucket = pinned;
    text.replace(begin, end - begin, url.ToString());
    return {};
  }

 private:
  const Context& context_;
  const std::string& job_;
  std::unique_ptr<object::Connection> connection_;
  std::map<std::string, std::string> pinned_;  ///< Url::bucket of both
};

}  // namespace

Status PinHubRevisions(const Context& context, jobs::Spec& spec) {
  Pinner pinner(context, spec.name);
  MR_TRY(pinner.Pin(spec.model.from));
  MR_TRY(pinner.Pin(spec.data.tokenizer));
  for (data::DataSource& source : spec.data.dataset.sources) MR_TRY(pinner.Pin(source.url));
  for (data::DataSource& source : spec.eval.sources) MR_TRY(pinner.Pin(source.url));
  if (spec.lora) MR_TRY(pinner.Pin(spec.lora->adapter));
  return {};
}

}  // namespace millrace::cli
