// The texts are those that millrace/data/documents/chat.cc writes for training, and what begins an answer.
#include <array>

#include "millrace/serve/chat/chat_template.h"

namespace millrace::serve {
namespace {

struct BuiltIn {
  std::string_view name, text;
  std::array<std::string_view, 1> stops, ends;
};

constexpr std::array<BuiltIn, 7> kBuiltIn = {{
    // For models that were never taught a form: a transcript, as in books and plays.
    {"plain",
     R"({% if add_bos and bos_token %}{{ bos_token }}{% endif %}
{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content | trim }}

{% elif message.role == 'user' %}
{{ 'User: ' ~ message.content | trim }}
{% elif message.role == 'assistant' %}
{{ 'Assistant: ' ~ message.content | trim }}
{% else %}
{{- raise_exception('the plain template knows the roles system, user and assistant, not ' ~ message.role) }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %})",
     {"\nUser:"},
     {}},
    {"chatml",
     R"({% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>' ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})",
     {},
     {"<|im_end|>"}},
    {"llama2",
     R"({% set system = namespace(text='') %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- set system.text = '<<SYS>>\n' ~ message.content ~ '\n<</SYS>>\n\n' %}
{%- elif message.role == 'user' %}
{{- bos_token ~ '[INST] ' ~ (system.text ~ message.content) | trim ~ ' [/INST]' }}
{%- set system.text = '' %}
{%- elif message.role == 'assistant' %}
{{- ' ' ~ message.content | trim ~ ' ' ~ eos_token }}
{%- else %}
{{- raise_exception('the llama2 template knows the roles system (at the beginning), user and assistant') }}
{%- endif %}
{%- endfor %})",
     {},
     {}},
    {"llama3",
     R"({{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})",
     {},
     {"<|eot_id|>"}},
    {"zephyr",
     R"({% for message in messages %}
{{- '<|' ~ message.role ~ '|>\n' ~ message.content ~ eos_token ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})",
     {},
     {}},
    {"gemma",
     R"({{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('the gemma template has no system messages') }}{% endif %}
{{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) ~ '\n' }}
{{- message.content | trim ~ '<end_of_turn>' ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})",
     {},
     {"<end_of_turn>"}},
    // openassistant-guanaco's records.
    {"guanaco",
     R"({{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content }}
{%- elif message.role == 'user' %}
{{- '### Human: ' ~ message.content }}
{%- elif message.role == 'assistant' %}
{{- '### Assistant: ' ~ message.content }}
{%- else %}
{{- raise_exception('the guanaco template knows the roles system, user and assistant, not ' ~ message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### Assistant:' }}{% endif %})",
     {"### Human:"},
     {}},
}};

std::vector<std::string> Texts(const std::array<std::string_view, 1>& texts) {
  std::vector<std::string> all;
  for (const std::string_view text : texts) {
    if (!text.empty()) all.emplace_back(text);
  }
  return all;
}

}  // namespace

std::optional<ChatTemplateSource> BuiltInChatTemplate(std::string_view name) {
  for (const BuiltIn& each : kBuiltIn) {
    if (each.name != name) continue;
    return ChatTemplateSource{
        .text = std::string(each.text), .tool_text = "", .stops = Texts(each.stops), .ends = Texts(each.ends)};
  }
  return std::nullopt;
}

std::vector<std::string_view> BuiltInChatTemplates() {
  std::vector<std::string_view> names;
  for (const BuiltIn& each : kBuiltIn) names.push_back(each.name);
  return names;
}

}  // namespace millrace::serve
