// Reads from a model's files how it writes conversations.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/object/connection.h"
#include "millrace/serve/chat/chat_template.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// Returns the template of chat_template.jinja or tokenizer_config.json, the one for tools of the latter or of
/// additional_chat_templates/tool_use.jinja, and the special tokens that templates name.
/// Without such a template its text is empty. Blocks. Errors: kInvalidArgument for broken files.
Result<ChatTemplateSource> ReadChatTemplate(const checkpoint::ModelSource& model, const tokenizer::Tokenizer& tokenizer,
                                            object::Call call = {});

/// Reads a template that a user named: a file in Jinja, or a tokenizer_config.json that has one. `url` is a path, s3://
/// or hf://. Nothing if there is no such file. Blocks. Errors: kResourceExhausted if the file is too large;
/// kInvalidArgument if a JSON file has no template.
Result<std::optional<ChatTemplateSource>> ReadTemplateFile(object::Connection& connection, std::string_view url,
                                                           object::Call call = {});

/// Returns the tokens that end a text: those that generation_config.json names, those of config.json, and the
/// tokenizer's. Blocks. Errors: kInvalidArgument for broken files.
Result<std::vector<TokenId>> ReadEndTokens(const checkpoint::ModelSource& model, const tokenizer::Tokenizer& tokenizer,
                                           object::Call call = {});

}  // namespace millrace::serve
