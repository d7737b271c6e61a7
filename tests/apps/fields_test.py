"""Request fields that change what the model says, each with its effect, through a server on the shipped model."""
import json
import unittest

from cli import MODEL, ZIPAGE, Cli
from served import Server

PROMPT = "mod 100 ."
END = 611  # the model's end-of-text token
CHAT = [{"role": "user", "content": "3 apples and 4 pears. how many?"}]


class Fields(Cli):
    @classmethod
    def setUpClass(cls):
        flags = ("--num-gpu-blocks-override", 256, "--block-size", 16, "--kv-slack", 32, "--max-model-len", 1024, "--trust-request-chat-template", "--swap-space", 0, "--quiet")
        cls.server = cls.enterClassContext(Server(ZIPAGE, MODEL, *flags))

    def complete(self, **fields):
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
        return self.server.post("/v1/completions", body)

    def ids(self, **fields):
        return self.complete(**fields)["choices"][0]["token_ids"]

    def tokens(self, **fields):
        return self.server.post("/tokenize", fields)["tokens"]

    def text_of(self, ids):
        return self.server.post("/detokenize", {"tokens": ids})["prompt"]

    # ---- sampling

    def test_temperature_and_seed(self):
        greedy = self.ids()
        self.assertEqual(self.ids(temperature=1e-6), greedy)
        hot = [self.ids(temperature=2, seed=seed) for seed in (1, 1, 2)]
        self.assertEqual(hot[0], hot[1])
        self.assertNotEqual(hot[0], hot[2])
        self.assertNotEqual(hot[0], greedy)
        # Sample i of a seeded request has the seed + i.
        both = self.complete(temperature=2, seed=1, n=2)["choices"]
        self.assertEqual([choice["token_ids"] for choice in both], [hot[0], hot[2]])

    def test_each_cut_of_the_distribution_to_one_token_is_greedy(self):
        greedy = self.ids()
        for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
            self.assertEqual(self.ids(temperature=2, seed=1, **cut), greedy, cut)
        self.assertEqual(self.ids(temperature=2, seed=1, top_k=-1, top_p=1, min_p=0), self.ids(temperature=2, seed=1))

    def test_penalties_make_tokens_rarer(self):
        prompts = [PROMPT, "roads .", "boxes", "a", "mod 7 .", "the"]

        def different_tokens(**fields):
            choices = self.complete(prompt=prompts, max_tokens=60, **fields)["choices"]
            return sum(len(set(choice["token_ids"])) for choice in choices)
        for name, more, fewer in (("repetition_penalty", 1.5, 0.5), ("presence_penalty", 2, -2), ("frequency_penalty", 2, -2)):
            self.assertGreater(different_tokens(**{name: more}), different_tokens(**{name: fewer}), name)

    def test_logit_bias_and_token_lists_decide_what_may_come(self):
        greedy = self.ids()
        other = next(token for token in range(300, 400) if token not in greedy)
        self.assertEqual(self.ids(logit_bias={str(other): 100}), [other] * 24)
        self.assertNotIn(greedy[0], self.ids(logit_bias={str(greedy[0]): -100}))
        self.assertLessEqual(set(self.ids(allowed_token_ids=[other, greedy[0]])), {other, greedy[0]})
        word = self.text_of(greedy[:3]).strip()
        self.assertNotIn(word, self.text_of(self.ids(bad_words=[word])))

    def test_fields_that_leave_a_grammar_no_token_are_the_client_s_fault(self):
        body = {"prompt": PROMPT, "structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [65]}
        status, text = self.server.request("POST", "/v1/completions", body)
        self.assertEqual(status, 400, text)

    # ---- length and end

    def test_the_end_of_an_answer(self):
        ended = self.complete(ignore_eos=False, max_tokens=500)["choices"][0]
        self.assertEqual(ended["finish_reason"], "stop")
        length = len(ended["token_ids"])
        self.assertLess(length, 500)
        longer = self.complete(ignore_eos=False, max_tokens=500, min_tokens=length + 10)["choices"][0]
        self.assertGreaterEqual(len(longer["token_ids"]), length + 10)
        self.assertNotIn(END, longer["token_ids"][:length + 9])
        self.assertEqual(len(self.ids(max_tokens=9, max_completion_tokens=5)), 5)
        self.assertEqual(len(self.ids(max_tokens=3, max_completion_tokens=None)), 3)

    def test_special_tokens_are_shown_on_request(self):
        force = {"allowed_token_ids": [END], "max_tokens": 2}
        self.assertEqual(self.complete(**force)["choices"][0]["text"], "")
        shown = self.complete(**force, skip_special_tokens=False)["choices"][0]["text"]
        self.assertEqual(shown, self.text_of([END, END]))
        # No tokenizer here puts spaces between them.
        self.assertEqual(self.complete(**force, skip_special_tokens=False, spaces_between_special_tokens=False)["choices"][0]["text"], shown)

    # ---- prompts

    def test_truncation_keeps_the_last_tokens(self):
        whole = self.tokens(prompt=PROMPT * 5)
        cut = self.complete(prompt=PROMPT * 5, truncate_prompt_tokens=7)
        self.assertEqual(cut["usage"]["prompt_tokens"], 7)
        self.assertEqual(cut["choices"][0]["prompt_token_ids"], whole[-7:])
        fitted = self.complete(prompt=[5] * 10000, truncate_prompt_tokens=-1)
        limit = self.server.post("/tokenize", {"prompt": "a"})["max_model_len"]
        self.assertEqual(fitted["usage"]["total_tokens"], limit)
        self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 0})[0], 400)

    def test_what_a_chat_s_prompt_is_made_of(self):
        prompt = self.tokens(messages=CHAT)
        self.assertLess(len(self.tokens(messages=CHAT, add_generation_prompt=False)), len(prompt))
        self.assertEqual(self.text_of(self.tokens(messages=CHAT, chat_template="<{{ messages[0].role }}>")), "<user>")
        self.assertEqual(self.text_of(self.tokens(messages=CHAT, chat_template="{{ mood }}", chat_template_kwargs={"mood": "glad"})), "glad")
        half = CHAT + [{"role": "assistant", "content": "there are"}]
        self.assertTrue(self.text_of(self.tokens(messages=half, continue_final_message=True, add_generation_prompt=False)).endswith("there are"))

    # ---- the cache

    def test_policy_budget_and_protection_of_one_request(self):
        long = {"prompt": [token for _ in range(20) for token in (20, 31, 42, 53, 64)], "max_tokens": 200, "kv_stats": True}
        def run(**fields):
            answer = self.complete(**long, **fields)
            return answer["choices"][0]["token_ids"], answer["usage"]["kv_stats"]
        full = run(kv_budget=0)
        self.assertEqual(full[1]["evicted_tokens"], 0)
        outputs = {policy: run(kv_budget=64, kv_policy=policy) for policy in ("content", "streaming", "random")}
        for policy, (_, stats) in outputs.items():
            self.assertGreater(stats["evicted_tokens"], 0, policy)
        self.assertGreater(len({tuple(ids) for ids, _ in outputs.values()}), 1, "policies keep the same tokens")
        self.assertEqual(run(kv_budget=64, vllm_xargs={"kv_policy": "streaming"}), outputs["streaming"])
        self.assertEqual(run(kv_budget=64, kv_policy="streaming", vllm_xargs={"kv_policy": "random"}), outputs["streaming"])
        budget = {"kv_budget": 256, "kv_policy": "snapkv"}
        self.assertEqual(run(**budget, protect_prompt=False), run(**budget))
        self.assertNotEqual(run(**budget, protect_prompt=True)[0], run(**budget)[0])
        refused, text = self.server.request("POST", "/v1/completions", {"prompt": "a", "kv_budget": 64, "protect_prompt": True})
        self.assertEqual((refused, json.loads(text)["error"]["param"]), (400, "kv_budget"))


if __name__ == "__main__":
    unittest.main()
