// Declarations of the files beside a tokenizer's file: the tokens that begin and end texts, and templates of
// conversations. The file itself does not name such tokens: without a declaration, its reader takes those of the
// post-processor or of usual names.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// The tokens that tokenizer_config.json and special_tokens_map.json declare. A text is empty if they do not say it.
struct DeclaredTokens {
  std::string bos, eos;
  std::optional<bool> adds_bos = {};  ///< add_bos_token: texts begin with bos
  ChatTemplates chat = {};            ///< without a text if there is no template
};

/// Returns the text of a special token: a string, or an object that has it as "content". Empty if it is neither.
std::string SpecialTokenText(const Json& token);

/// Returns a file of the folder, or nothing if there is none.
using ReadSibling = std::function<Result<std::optional<std::string>>(std::string_view file)>;

/// Takes the templates of a tokenizer_config.json's "chat_template": a text, or a list of named ones, of which
/// "default" and "tool_use" count.
void TakeChatTemplates(const Json& config, ChatTemplates& into);

/// Reads the declarations of a folder. tokenizer_config.json takes precedence, but chat_template.jinja and
/// additional_chat_templates/tool_use.jinja come before its templates. `folder` is for messages.
/// Errors: kInvalidArgument if a file is not JSON; those of `read`.
Result<DeclaredTokens> ReadDeclaredTokens(const ReadSibling& read, std::string_view folder);

/// Returns a tokenizer that begins and ends texts with the declared tokens and has the templates of conversations, and
/// is `tokenizer` in all else. Warns in `log` of a declared token that the tokenizer lacks, and leaves it out.
std::shared_ptr<const Tokenizer> WithDeclaredTokens(std::shared_ptr<const Tokenizer> tokenizer,
                                                    const DeclaredTokens& declared, const Logger& log);

}  // namespace millrace::tokenizer
