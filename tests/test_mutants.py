"""Faults put into the code on purpose, each with a test of the suite that must go red.

Every fault is one that some program really had, or that an edit could bring back. A child process loads the
module with one passage changed and runs the test that is named; the test must fail, and not for want of an import.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LAW = "test_exactness.py::test_the_law_is_the_targets_to_the_last_fraction"
SAMPLED_LAW = "test_exactness.py::test_the_law_is_the_targets_with_temperature_top_k_and_top_p"
FILTERED_LAW = "test_exactness.py::test_the_law_with_filters_where_all_is_possible"
WARY_LAW = "test_exactness.py::test_the_law_where_certainty_ends_a_draft"
WHOLE_LAW = "test_exactness.py::test_the_law_where_all_is_possible"
ACCEPT_RATE = "test_exactness.py::test_a_guess_is_kept_with_the_chance_of_the_overlap"
GREEDY = "test_exactness.py::test_greedy_text_is_identical_in_plain_numpy"
SAME_SEED = "test_exactness.py::test_sampled_text_of_a_seed_is_identical_in_plain_numpy"
CACHES = "test_exactness.py::test_both_caches_are_right_after_every_round"
DEALT = "test_kernels.py::test_each_piece_is_dealt_once_and_a_thread_that_never_comes_is_not_waited_for"
LINEAR = "test_kernels.py::test_linear_equals_numpy"
WAIT = "test_kernels.py::test_threads_wait_for_each_other"
BATCH_BITS = "test_batch.py::test_logits_and_caches_of_a_batch_have_the_bits_of_each_alone"
OVERLAPPED_LAW = "test_overlapped.py::test_the_law_is_the_targets_to_the_last_fraction"
BRANCHES = "test_trees.py::test_the_law_where_a_small_model_branches_and_all_is_possible"
TREE_LAW = "test_trees.py::test_the_law_of_trees_is_the_targets_to_the_last_fraction"
TREE_TEXT = "test_trees.py::test_text_is_that_of_plain_decoding"
TREE_BITS = "test_tree_pass.py::test_a_tree_has_the_bits_of_its_chains_and_a_kept_path_those_of_a_fresh_pass"
TREE_RUNS = "test_tree_pass.py::test_a_head_takes_the_runs_of_a_tree_in_their_order"
BLOCK_LAW = "test_trees.py::test_the_law_of_blocks_is_the_targets_to_the_last_fraction"
EAGLE_TREES = "test_eagle_tree.py::test_the_law_is_the_targets"
BITS = "test_exactness.py::test_logits_and_cache_have_the_bits_of_one_pass"
FILES = "test_surroundings.py::test_each_kind_of_arguments_has_its_file"
PARALLEL = "test_surroundings.py::test_a_parallel_function_is_kept_in_its_callers_code_alone"
COMPILED = (WAIT, FILES, PARALLEL)  # tests that say something of compiled kernels alone


@dataclass(frozen=True)
class Mutant:
    """A passage of a module, what it is changed to, and the test that must go red."""

    name: str
    module: str
    old: str
    new: str
    caught_by: str
    sign: str = "[aA]ssert"  # what its report says: a comparison that failed, and not the crash of a clumsy change


MUTANTS = [
    # the rule
    Mutant("residual dropped", "speculative",
           "            target_probs = residual(target_probs, draft_probs)\n", "", LAW),
    Mutant("residual not rescaled", "speculative", "return excess / total if", "return excess if", LAW),
    Mutant("residual of draft over target", "speculative", "np.maximum(target_probs - draft_probs, 0)",
           "np.maximum(draft_probs - target_probs, 0)", LAW),
    Mutant("residual divides zero by zero", "speculative", " if total > 0 else target_probs", "",
           "test_speculative.py::test_residual_of_equal_distributions_is_the_target", "invalid value encountered"),
    Mutant("p and q swapped", "speculative", "choices.accept(target_probs[token], draft_probs[token])",
           "choices.accept(draft_probs[token], target_probs[token])", LAW),
    Mutant("accept only the target's favourite", "speculative",
           "choices.accept(target_probs[token], draft_probs[token])", "token == target_probs.argmax()", LAW),
    Mutant("accept if the target draws the same token", "speculative",
           "choices.accept(target_probs[token], draft_probs[token])", "choices.draw(target_probs) == token",
           ACCEPT_RATE),
    Mutant("accept with <= at probability 0", "speculative", "return bool(target_prob > 0 and kept)",
           "return bool(self.rng.random() * draft_prob <= target_prob)",
           "test_exactness.py::test_acceptance_at_its_edges"),
    Mutant("a fourth guess taken on trust", "speculative",
           "choices.accept(target_probs[token], draft_probs[token])",
           "(target_probs[token] > 0 if depth == 3 else choices.accept(target_probs[token], draft_probs[token]))",
           ACCEPT_RATE),
    Mutant("bonus by argmax", "speculative", "yield choices.draw(target_probs), 0",
           "yield choices.draw(target_probs) if draft.children(guess) else int(np.argmax(target_probs)), 0", LAW),
    Mutant("bonus from the last guess's row", "speculative", "sampling.probs(logits[1 + guess], position + depth)",
           "sampling.probs(logits[min(1 + guess, max(len(draft.tokens) - 1, 0))], position + depth)", LAW),
    Mutant("bonus from the draft", "speculative", "yield choices.draw(target_probs), 0",
           "yield choices.draw(target_probs if draft.children(guess) or guess < 0 else draft.probs[-1]), 0", LAW),
    Mutant("rows off by one", "speculative", "sampling.probs(logits[1 + guess], position + depth)",
           "sampling.probs(logits[min(2 + guess, len(logits) - 1)], position + depth)", LAW),
    Mutant("one uniform for draw and accept", "speculative", "self.rng = np.random.default_rng(int(seed))",
           "twice = (u for u in iter(np.random.default_rng(int(seed)).random, None) for _ in range(2));"
           "self.rng = type('Twice', (), {'random': lambda _: next(twice)})()",
           "test_exactness.py::test_the_dice_of_the_real_loop_give_the_law"),
    Mutant("a token of probability 0 drawn at a uniform of 0", "speculative", 'side="right"', 'side="left"',
           "test_exactness.py::test_a_token_without_probability_is_never_drawn"),
    Mutant("a draw past the end where the sum rounds", "speculative", "    if place == len(cumulated):",
           "    if False:", "test_exactness.py::test_a_token_without_probability_is_never_drawn"),
    Mutant("a group's draw forgets the groups before", "speculative",
           "uniform - groups[group - 1] if group else uniform", "uniform",
           "test_exactness.py::test_draws_from_a_large_vocabulary_follow_their_law"),
    # the loop
    Mutant("stop token looked for at the end of a block only", "speculative",
           "            if finish:\n                break\n", "", WHOLE_LAW),
    Mutant("limit before stop", "text", "if self.stop is not None and n_new and",
           "if self.stop is not None and 0 < n_new < self.limit - self.n_prompt and",
           "test_speculative.py::test_stop_anywhere_in_a_block"),
    Mutant("a guess beyond the limit", "speculative", "min(guide.most(), text.room - 1)",
           "min(guide.most(), text.room)",
           "test_speculative.py::test_counts_of_a_run_worked_by_hand"),
    Mutant("refused guess counted as kept", "speculative", "path += [guess - 1] if guess else []",
           "path += [guess - 1]", ACCEPT_RATE),
    # the drafter
    Mutant("argmax taken for a draw", "drafters.small_model", "tokens.append(choices.draw(probs[-1]))",
           "tokens.append(int(np.argmax(probs[-1])))", LAW),
    Mutant("top-p on one side only", "drafters.small_model", "tokens.append(choices.draw(probs[-1]))",
           "from dataclasses import replace; "
           "tokens.append(choices.draw(replace(sampling, top_p=1.0).probs(logits, position)))", FILTERED_LAW,
           "gives no chance"),
    Mutant("drawn at another temperature than stated", "drafters.small_model",
           "tokens.append(choices.draw(probs[-1]))",
           "tokens.append(choices.draw(probs[-1] ** 2 / sum(probs[-1] ** 2)))", LAW),
    Mutant("a sampled guess discarded for its value", "drafters.small_model", "            pending = tokens[-1:]\n",
           "            pending = tokens[-1:]\n            if tokens[-1] == 0:\n"
           "                return Draft(tokens[:-1], probs[:-1])\n", LAW),
    Mutant("an unsure guess thrown away", "drafters.small_model", "                break\n            pending",
           "                del tokens[-1], probs[-1]\n                break\n            pending", WARY_LAW),
    Mutant("draft cache one short after a full accept", "drafters.small_model",
           "list(ids[len(self.cached) :])", "list(ids[-1:]) if self.cached else list(ids)", CACHES),
    Mutant("draft cache looks at lengths alone", "drafters.small_model", "next(differ, len(self.cached))",
           "len(self.cached)", "test_drafters.py::test_a_small_model_forgets_what_no_longer_holds"),
    Mutant("a guess made for the place before", "drafters.small_model", "sampling.probs(logits, position)",
           "sampling.probs(logits, position - 1)", SAME_SEED),
    # sampling
    Mutant("top-p keeps the token after", "sampling", ".searchsorted(enough) + 1", ".searchsorted(enough) + 2",
           "test_sampling.py::test_equals_sorting"),
    Mutant("top-p not rescaled", "sampling", "weights[ids] / weights[ids].sum()", "weights[ids] / weights.sum()",
           SAMPLED_LAW),
    Mutant("top-k keeps all that tie", "sampling", 'kind="stable")[:top_k]]', 'kind="stable")]',
           "test_sampling.py::test_top_k_keeps_exactly_k_and_the_lower_id_of_equals"),
    Mutant("top-p forgets the mass of the bins before", "sampling", "mass[last - 1] if last else 0.0", "0.0",
           "test_sampling.py::test_bins_of_any_width_change_nothing"),
    Mutant("top-p of 0 among rare tokens keeps none", "sampling", "sum() <= enough:", "sum() < enough:",
           "test_sampling.py::test_whole_vocabularies_equal_sorting"),
    Mutant("top-k looks at whole groups only", "sampling", "np.flatnonzero(logits >= bound)",
           "np.flatnonzero(groups.ravel() >= bound)",
           "test_sampling.py::test_top_k_is_the_beginning_of_the_sorted_ids"),
    # same seed, same text
    Mutant("noise of the round, not of the place", "speculative",
           "sampling.probs(logits[1 + guess], position + depth)", "sampling.probs(logits[1 + guess], position)",
           SAME_SEED),
    Mutant("noise drawn anew each time", "gumbel", "        if noise is None:",
           "        self.seed += 1\n        if True:", SAME_SEED),
    Mutant("the same noise at every place", "gumbel", "spawn_key=(position,)", "spawn_key=(0,)",
           "test_exactness.py::test_picks_by_noise_follow_their_law"),
    Mutant("noise of another law", "gumbel", "rng.standard_exponential(n_vocab)", "rng.random(n_vocab)",
           "test_exactness.py::test_picks_by_noise_follow_their_law"),
    # the model and its cache
    Mutant("stale cache row after a rollback", "wiring", "        ops.store(k, v, keys, values, cache.length)",
           "        if not keys[:, cache.length].any():\n"
           "            ops.store(k, v, keys, values, cache.length)", GREEDY),
    Mutant("a truncated cache keeps a row", "kv_cache", "self.length = int(length)",
           "self.length = min(self.length, int(length) + 1)", BITS),
    Mutant("positions counted from the start of a pass", "wiring", "w.wpe[n_past : n_past + len(ids)]",
           "w.wpe[: len(ids)]", BITS),
    Mutant("a row sees the row after it", "reference", "seen = n_past + row + 1",
           "seen = min(n_past + row + 2, n_past + n_new)", BITS),
    Mutant("a BLAS for all rows at once", "reference", "        out[row] = x[row] @ weight * scale + bias",
           "        out[:] = x @ weight * scale + bias", BITS),
    Mutant("keys stored one place late", "reference", "keys[:, n_past : n_past + k.shape[1]] = k",
           "keys[:, n_past : n_past + k.shape[1]] = np.roll(k, n_past > 0, axis=1)", BITS),
    Mutant("a sum cut by the number of rows", "kernels.product",
           "    for start in range(0, panel.shape[0], PIECE):\n        stop = min(start + PIECE, panel.shape[0])\n",
           "    piece = PIECE if x.shape[0] < 2 else 16\n"
           "    for start in range(0, panel.shape[0], piece):\n        stop = min(start + piece, panel.shape[0])\n",
           BITS),
    Mutant("a row sees all keys of its tile", "kernels.attention",
           "softmax_row(weights[r], n_past + first + r + 1, lanes)",
           "softmax_row(weights[r], n_past + first + n_row, lanes)", BITS),
    Mutant("one thread sums in another order than two", "kernels.whole_pass",
           "linear_add(crew, s + 6, up,",
           "linear_add(crew, s + 6, up if n_crew > 1 else up * np.float32(1.1) / np.float32(1.1),", BITS),
    Mutant("the next stage begins before the last is done", "kernels.crew", "while look(board, finished) < n:",
           "while look(board, finished) < 0:", WAIT),
    Mutant("a run's first piece is the last of the run before", "kernels.crew",
           "            piece = first + add(board, counter)",
           "            piece = max(first - 1, 0) + add(board, counter)", DEALT),
    Mutant("the scale of the output before", "kernels.int8", "sums[r * 2 * WIDE + n] * scale[column + n]",
           "sums[r * 2 * WIDE + n] * scale[max(column + n - 1, 0)]", LINEAR),
    # trees and blocks
    Mutant("the original law for draws without replacement", "drafters.small_model_tree",
           "        yield taken[-1], law\n", "        yield taken[-1], sampling.probs(logits, position)\n", BRANCHES),
    Mutant("siblings judged youngest first", "protocols",
           "return [child for child, parent in enumerate(self.parents) if parent == guess]",
           "return [child for child, parent in enumerate(self.parents) if parent == guess][::-1]", BRANCHES),
    Mutant("a younger sibling judged by the whole target", "speculative",
           "target_probs = residual(target_probs, draft_probs)",
           "target_probs = residual(sampling.probs(logits[1 + guess], position + depth), draft_probs)", TREE_LAW),
    Mutant("a certain guess judged by the law of the others", "speculative", "draft.tokens[child], draft.probs[child]",
           "draft.tokens[child], draft.probs[draft.children(guess)[0]]", TREE_LAW),
    Mutant("a guess's noise by its number, not its depth", "speculative",
           "guess, depth = child, depth + 1", "guess, depth = child, child + 1", TREE_TEXT),
    Mutant("position by number, not by depth", "trees", "n_text + deep[run[0]] - 1", "n_text + int(run[0])", TREE_BITS),
    Mutant("breadth first", "trees", "run = [waiting.pop()]", "run = [waiting.pop(0)]",
           "test_tree_pass.py::test_branches_are_the_tree_depth_first"),
    Mutant("keep copies the rows of the first guesses", "kv_cache",
           "self.values, self.n_ctx + np.array(path)", "self.values, self.n_ctx + np.arange(len(path))", TREE_BITS),
    Mutant("keep takes what the last branch has left in place", "kv_cache",
           "            self.copy_rows(self.keys,", "            len(path) or self.copy_rows(self.keys,", TREE_BITS),
    Mutant("guesses of another pass are kept", "kv_cache",
           "self.length = int(length)\n        self.on_trial = ()", "self.length = int(length)",
           "test_tree_pass.py::test_only_a_path_of_the_last_tree_is_kept", "DID NOT RAISE"),
    Mutant("logits of a tree in the order of its runs", "model",
           "1 + np.concatenate([run.guesses for run in runs])", "1 + np.arange(len(tokens))", TREE_BITS),
    Mutant("runs of a tree dealt out apart", "kernels.whole_pass",
           "if s == 0 or sequences[s, SLOT] != sequences[s - 1, SLOT]:", "if True:", TREE_RUNS),
    Mutant("weights of a block not carried on", "speculative", "kept = weights[-1] * target_probs[token]",
           "kept = target_probs[token]", BLOCK_LAW),
    Mutant("weights of a block not held at 1", "speculative", "weights.append(1 if kept >= draft_probs[token] else",
           "weights.append(kept / draft_probs[token] if draft_probs[token] else", BLOCK_LAW),
    Mutant("the shortest beginning of a block kept", "speculative", "range(n, 0, -1)", "range(1, n + 1)", BLOCK_LAW),
    Mutant("a block's replacement without its weight", "speculative", "residual(weights[n_kept] * rest,",
           "residual(rest,",
           "test_trees.py::test_the_law_of_blocks_where_all_is_possible"),
    Mutant("the first of equal trees is the best", "tree_shape", "one if one.speedup > best.speedup else best",
           "best if best.parents else one", "test_tree_shape.py::test_no_shape_pays_better"),
    Mutant("a child is as likely as its parent", "tree_shape", "-above * accept[depth - 1][rank]",
           "-accept[depth - 1][rank]", "test_tree_shape.py::test_no_shape_pays_better"),
    Mutant("guesses beside others are free", "tree_shape", "(n - deep) * costs.beside", "0.0",
           "test_tree_shape.py::test_a_shape_worked_by_hand"),
    Mutant("a sibling of a kept guess counted as refused", "tree_shape", "count[1] += 1\n                    break\n",
           "count[1] += 1\n", "test_tree_shape.py::test_a_table_worked_by_hand"),
    Mutant("a tree's guesses read after others than their own", "drafters.small_model_tree",
           "logits[1 + number[place]] for place in places", "logits[1 + i] for i, _ in enumerate(places)",
           "test_trees.py::test_each_guess_of_any_tree_is_the_models_own_for_its_place"),
    Mutant("counts of greedy texts for sampled ones", "tree_counts", "greedy = settings.temperature == 0",
           "greedy = True", "test_tree_auto.py::test_counts_are_of_target_drafter_and_way_to_sample"),
    # the simulation
    Mutant("the simulated rule without its residual", "rules",
           '"""The rule of the loop."""\n    return Plan(draft, capped_ratio(target, draft), residual(target, draft),',
           '"""The rule of the loop."""\n    return Plan(draft, capped_ratio(target, draft), target,',
           "test_simulation.py::test_two_rules_keep_the_law_and_the_right_one_keeps_the_overlap"),
    Mutant("a coin that was thrown before counted as new", "rules", "np.minimum(accept, ends) - starts",
           "np.minimum(accept, ends - starts)", "test_simulation.py::test_exact_laws_are_those_of_fractions"),
    Mutant("trials share their dice", "trials", "(trials * THREE + throw + ONE)", "(trials + throw + ONE)",
           "test_simulation.py::test_the_stream_is_splitmix64"),
    Mutant("a simulated draw at the end of a sum", "trials", 'sums.searchsorted(numbers, side="right")',
           'sums.searchsorted(numbers, side="left")',
           "test_simulation.py::test_a_draw_is_the_first_sum_above_and_never_without_probability"),
    Mutant("a compiled draw at the end of a sum", "trials_numba", "while sums[token] <= number:",
           "while sums[token] < number:",
           "test_simulation.py::test_a_draw_is_the_first_sum_above_and_never_without_probability"),
    Mutant("a guess thrown away and replaced as if refused", "trials", "accept[guesses[refused]] == THROWN_AWAY",
           "accept[guesses[refused]] < THROWN_AWAY", "test_simulation.py::test_counts_follow_the_rules_exact_law"),
    Mutant("pieces of trials overlap", "simulation", "min(first + loop.PIECE, trials)",
           "min(first + loop.PIECE + 1, trials)",
           "test_simulation.py::test_counts_do_not_depend_on_threads_and_pieces"),
    Mutant("a degree of freedom too many", "chi_square", "degrees = len(due) - 1", "degrees = len(due)",
           "test_chi_square.py::test_without_rare_tokens_it_is_the_textbooks"),
    Mutant("an impossible token passed over", "chi_square", "if counts[probs == 0].any():", "if False:",
           "test_chi_square.py::test_what_cannot_be_makes_the_p_value_nothing"),
    # how far to guess
    Mutant("guesses that nobody judged counted as refused", "draft_length", "for place in range(n_judged):",
           "for place in range(n_guess):", "test_draft_length.py::test_guesses_that_were_not_judged_teach_nothing"),
    Mutant("a guess in every round, whatever it costs", "draft_length", "if pays and spare >= 0:", "if True:",
           "test_draft_length.py::test_it_never_loses_much_against_plain_decoding"),
    Mutant("the last guess of a round is forgotten", "speculative", "step.n_accepted + n_refused)", "step.n_accepted)",
           "test_draft_length.py::test_a_refused_guess_is_heard_of"),
    # drafters without a model
    Mutant("a run that finds itself", "drafters.prompt_lookup", "        place = len(self.ids)\n        for n in",
           "        place = len(self.ids) + 1\n        self.ids = [*self.ids, token]\n        for n in",
           "test_free_drafters.py::test_prompt_lookup_is_its_naive_twin"),
    Mutant("the first place for the most recent", "drafters.prompt_lookup", 'if self.which == "recent" or run not in',
           'if self.which != "recent" or run not in', "test_free_drafters.py::test_prompt_lookup_worked_by_hand"),
    Mutant("the shortest match", "drafters.prompt_lookup", "range(min(self.longest, len(self.ids)), 0, -1)",
           "range(1, min(self.longest, len(self.ids)) + 1)",
           "test_free_drafters.py::test_prompt_lookup_is_its_naive_twin"),
    Mutant("a copy from one place on", "drafters.prompt_lookup", "self.ids[place + i % period]",
           "self.ids[min(place + 1, len(self.ids) - 1) + i % max(period - 1, 1)]",
           "test_free_drafters.py::test_prompt_lookup_is_its_naive_twin"),
    Mutant("a text that is another one is taken for its continuation", "drafters.certain",
           "return list(ids[: len(self.ids)]) == self.ids", "return len(ids) >= len(self.ids)",
           "test_free_drafters.py::test_prompt_lookup_is_its_naive_twin"),
    Mutant("a certain guess that claims half", "drafters.certain", "probs[token] = 1.0", "probs[token] = 0.5",
           "test_free_drafters.py::test_the_law_is_the_targets", "gave no law"),
    Mutant("a guess taken back for what go_on says", "drafters.certain",
           "            break\n    return Draft(tokens, [",
           "            del tokens[-1]\n            break\n    return Draft(tokens, [",
           "test_free_drafters.py::test_a_draft_ends_where_it_is_told_to"),
    Mutant("counts that are not rolled forward", "drafters.suffix", "            node.count += 1\n",
           "            node.count = 1\n", "test_free_drafters.py::test_suffix_worked_by_hand"),
    Mutant("of equals the one seen first", "drafters.suffix", "(item[1].count, item[1].last)",
           "(item[1].count, -item[1].last)", "test_free_drafters.py::test_suffix_worked_by_hand"),
    Mutant("a draft longer than its match", "drafters.suffix", "min(m, n_draft)", "n_draft if m else 0",
           "test_free_drafters.py::test_suffix_worked_by_hand"),
    Mutant("of equal scores the shorter match", "drafters.suffix", "if score >= best_score:", "if score > best_score:",
           "test_free_drafters.py::test_suffix_is_its_naive_twin"),
    Mutant("a tree deeper than its depth", "drafters.suffix", "self.matches[:DEPTH]", "self.matches[: DEPTH + 1]",
           "test_free_drafters.py::test_suffix_is_its_naive_twin"),
    Mutant("texts counted as one", "ngram_table", "packed = packed[text_of[:n_window] == text_of[n : n + n_window]]",
           "pass", "test_free_drafters.py::test_a_table_is_its_naive_twin"),
    Mutant("a context packed from its other end", "ngram_table", "for token in ids[len(ids) - n :]:",
           "for token in ids[len(ids) - n :][::-1]:", "test_free_drafters.py::test_a_table_is_its_naive_twin"),
    Mutant("a table of any vocabulary", "ngram_table", 'if about.get("vocabulary") != tokenizer.fingerprint:',
           "if False:", "test_free_drafters.py::test_a_table_of_another_vocabulary_is_refused", "DID NOT RAISE"),
    Mutant("a draft that runs past its stop", "drafters.ngram", "if product < self.stop:", "if share < self.stop:",
           "test_free_drafters.py::test_a_draft_ends_where_the_product_of_shares_falls_below_the_stop"),
    Mutant("the last that proposes anything", "drafters.combined", "for drafting in self.draftings:",
           "for drafting in self.draftings[::-1]:",
           "test_free_drafters.py::test_the_first_that_proposes_anything_drafts_the_round"),
    Mutant("a pass of the one model for the other's texts", "conductor", "if asked.model.model is model]", "]",
           "test_free_drafters.py::test_two_models_of_a_batch_share_their_own_passes", "another model"),
    Mutant("caches of the one model for the other", "batch", "key = kind, id(model)", "key = kind, 0",
           "test_free_drafters.py::test_two_models_of_a_batch_share_their_own_passes", "another model"),
    Mutant("one price for every way to draft", "kept_costs", "        drafter,\n    ]", "        None,\n    ]",
           "test_methods.py::test_prices_are_kept_for_each_way_to_draft"),
    Mutant("a key without the table's bytes", "sweep", "[file_digest(file) for file in files] if files else",
           "[str(file) for file in files] if files else",
           "test_methods.py::test_a_key_knows_the_method_and_the_bytes_of_its_table"),
    # theory
    Mutant("a round without the target's own token", "theory", "tokens = 1 + accept * tokens",
           "tokens = accept * (1 + tokens)", "test_theory.py::test_the_table"),
    Mutant("a check of the guesses alone", "theory", "costs.curve(n_draft + 1)", "costs.curve(n_draft)",
           "test_theory.py::test_a_measured_round_by_hand"),
    Mutant("reading along after every round", "theory", "costs.reread * accept**n_draft", "costs.reread",
           "test_theory.py::test_a_measured_round_by_hand"),
    Mutant("the longest of equal draft lengths", "theory", "best = speeds.index(max(speeds))",
           "best = most - speeds[::-1].index(max(speeds))",
           "test_theory.py::test_the_textbook_gains_where_guesses_are_kept_more_often_than_they_cost"),
    Mutant("break-even on the losing side", "theory", "return enough", "return slower",
           "test_theory.py::test_break_even_is_where_the_speedup_reaches_one"),
    Mutant("an output layer counted twice", "theory", "in_products = s.n_vocab", "in_products = 2 * s.n_vocab",
           "test_theory.py::test_parameters_are_those_that_everybody_names"),
    Mutant("a plot upside down", "plot", "int((high - y) / (high - low) * n_y)", "int((y - low) / (high - low) * n_y)",
           "test_plot.py::test_dots_are_where_the_values_are"),
    Mutant("a name beside another curve", "plot", "return {place: names[i] for", "return {place: names[-1 - i] for",
           "test_plot.py::test_every_curve_is_named_once_in_the_order_of_their_ends"),
    # a sweep
    Mutant("a guess after a stop counted as judged", "sweep_counts",
           "not step.at_end and len(step.committed) > step.n_accepted", "not step.at_end",
           "test_sweep.py::test_a_guess_is_judged_where_the_loop_threw_a_coin"),
    Mutant("guesses after a refused one counted as refused", "sweep_counts", "sum(place < n_judged(step) for",
           "sum(place < len(step.drafted) for", "test_sweep.py::test_counts_of_a_text_worked_by_hand"),
    Mutant("places that one sum lacks are dropped", "sweep_counts", "zip_longest(a, b, fillvalue=0)", "zip(a, b)",
           "test_sweep.py::test_counts_add_in_any_order_and_grouping"),
    Mutant("a key without the seed", "sweep", 'del parts["offline"]', 'del parts["offline"], parts["seed"]',
           "test_sweep.py::test_a_key_holds_all_that_counts_depend_on"),
    Mutant("a key of the model's name", "sweep", "told.append(model_digest(part.name, settings.offline))",
           "told.append(part.name)",
           "test_sweep.py::test_a_key_knows_the_bytes_of_a_model_and_not_its_name"),
    Mutant("what a dead worker had is lost", "sweep_workers", "waiting.remove(group)", "waiting.clear()",
           "test_sweep.py::test_workers_may_die_and_nothing_is_lost_or_done_twice"),
    Mutant("a torn line stays", "sweep_file", "            self.file.truncate(self.file.tell() - len(torn))",
           "            pass", "test_sweep.py::test_a_sweep_goes_on_from_a_file_cut_at_any_byte"),
    # batches
    Mutant("positions of the batch's first text", "kernels.whole_pass", "position[row + i] = sequences[s, PAST] + i",
           "position[row + i] = sequences[0, PAST] + i", BATCH_BITS),
    Mutant("logits of a batch's last rows", "kernels.whole_pass", "row - sequences[s, LOGITS] + i",
           "n_new - n_logits + n_wanted + i", BATCH_BITS),
    Mutant("the first text's slot for all", "passes", "[(cache.slot, cache", "[(block.slot, cache", BATCH_BITS),
    Mutant("logits in the order of the blocks", "model", "return [logits[i] for i in range(len(requests))]",
           "return list(logits.values())", BATCH_BITS),
    Mutant("a failed batch leaves rows behind", "model",
           "                cache.truncate(length)\n            raise\n", "                pass\n            raise\n",
           "test_batch.py::test_after_an_error_all_caches_are_as_they_were"),
    Mutant("a draft pass for each text", "conductor", "chosen = drafting or", "chosen = drafting[:1] or",
           "test_batch.py::test_texts_share_their_passes_and_one_that_ends_leaves"),
    Mutant("logits of another text", "conductor", "zip(chosen, logits,", "zip(chosen, logits[::-1],",
           "test_batch.py::test_each_text_is_its_solo_text_with_models_that_know_no_batch"),
    Mutant("a batch that is given up leaves its threads", "conductor",
           "            worker.turn.put(Ended)\n        for worker in workers:\n            worker.join()\n",
           "            pass\n", "test_batch.py::test_no_thread_is_left_where_the_caller_stops"),
    # what the target has seen, and who guesses from it
    Mutant("features a layer late", "kernels.whole_pass", "taps[n_tapped] == layer:", "taps[n_tapped] + 1 == layer:",
           "test_taps.py::test_features_are_what_the_layers_hand_on"),
    Mutant("features of the batch's first text", "passes", "features[:, first:end]", "features[:, : end - first]",
           "test_taps.py::test_features_of_a_batch_are_those_of_each_text_alone"),
    Mutant("features of the first row that was read", "drafters.medusa", "self.drafter.depth)[-1:]",
           "self.drafter.depth)[:1]", "test_seen_drafters.py::test_blocks_of_zeros_guess_what_the_target_wrote_last"),
    Mutant("heads of another target taken", "heads", 'if metadata.get("target") != fingerprint(target):', "if False:",
           "test_heads.py::test_heads_of_another_target_method_or_format_are_refused_in_one_line", "DID NOT RAISE"),
    Mutant("independent guesses by argmax", "drafters.marginals", "choices.draw(probs[-1])",
           "int(probs[-1].argmax())", "test_seen_drafters.py::test_the_law_is_the_targets"),
    Mutant("all independent guesses for one place", "drafters.marginals", "position + i)", "position)",
           "test_seen_drafters.py::test_each_row_is_a_law_of_its_own_place"),
    Mutant("masks stay in the cache", "drafters.parallel", "        self.cache.truncate(len(ids))\n", "",
           "test_seen_drafters.py::test_masks_ask_for_the_tokens_after_next"),
    Mutant("early exit takes the text as read", "drafters.early_exit", "min(self.target_cache.length, len(ids) - 1)",
           "len(ids) - 1", "test_seen_drafters.py::test_early_exit_guesses_as_the_first_layers_would_alone"),
    # traces
    Mutant("notes that throw dice", "trace_notes", "        kept = super().accept(target_prob, draft_prob)\n",
           "        self.rng.random()\n        kept = super().accept(target_prob, draft_prob)\n",
           "test_trace_notes.py::test_a_run_with_notes_is_the_run_without"),
    Mutant("the law of the place after", "trace_notes", "position + depth - 1", "position + depth",
           "test_trace_notes.py::test_what_is_noted_is_what_passes_from_scratch_say"),
    Mutant("a younger sibling's law is the eldest's", "trace_notes",
           "target_probs = residual(target_probs, draft.probs[sibling])", "pass",
           "test_trace_notes.py::test_a_younger_sibling_is_judged_by_what_is_left"),
    Mutant("the coin of another guess", "trace_notes", "thrown = -1, iter(accepts)", "thrown = -1, iter(accepts[::-1])",
           "test_trace_notes.py::test_each_coin_explains_its_verdict"),
    Mutant("coins of a block in the order of its guesses", "trace_notes", "n_guess - 1 - i: {", "i: {",
           "test_trace_notes.py::test_a_block_is_kept_up_to_the_last_coin_that_fell_below"),
    Mutant("what follows an end is refused", "trace_notes", '"refused" if i in verdicts else "lost"', '"refused"',
           "test_trace_notes.py::test_where_a_text_ends_among_guesses_those_after_are_lost"),
    Mutant("a text may end its element", "trace_page", 're.sub("[<>&]"', 're.sub("[>&]"',
           "test_trace_page.py::test_whatever_a_text_says_it_is_data"),
    Mutant("a page takes any file's place", "trace_page", "if path.is_file() and not is_page(path):", "if False:",
           "test_cli_trace.py::test_what_cannot_be_is_refused_in_one_line_before_a_model_is_loaded",
           "a model was loaded"),
    Mutant("a round's line of any length", "viz_rounds",
           "for text, _ in pieces) <= room:", "for text, _ in pieces) <= 9999:",
           "test_viz.py::test_a_round_is_a_line_of_80_columns_at_most"),
    # drafting while checking
    Mutant("a bonus token after a fresh guess", "overlapped",
           "islice(judge(block, logits, first, sampling, judge_choices), len(logits))",
           "islice(judge(block, logits, first, sampling, judge_choices), None)", OVERLAPPED_LAW, "IndexError"),
    Mutant("a fresh block thrown away for its first guess", "overlapped",
           "fresh, draft_seconds = fresh_draft.result()",
           "fresh, draft_seconds = fresh_draft.result(); fresh = NOTHING if 0 in fresh.tokens[:1] else fresh",
           OVERLAPPED_LAW),
    Mutant("guesses after a refused one wait on", "overlapped",
           "unjudged if n_accepted == len(block.tokens) and not finish else", "unjudged if not finish else",
           "test_overlapped.py::test_rounds_worked_by_hand"),
    Mutant("a fresh block that follows the text alone", "overlapped", "begin_draft([*text.ids, *waiting.tokens],",
           "begin_draft([*text.ids],", "test_overlapped.py::test_text_is_that_of_plain_decoding"),
    Mutant("drafter and judge throw the same dice", "overlapped", "np.random.SeedSequence(int(seed), spawn_key=(0,))",
           "int(seed)", "test_overlapped.py::test_the_dice_of_drafter_and_judge_give_the_law"),
    Mutant("the check waits for the draft", "overlapped",
           "            began = time.perf_counter()\n            pending",
           "            began = time.perf_counter()\n            fresh_draft.result()\n            pending",
           "test_overlapped.py::test_draft_and_check_are_under_way_at_the_same_time", "BrokenBarrierError"),
    Mutant("a pass of one thread waits for the others", "model", "nullcontext() if self.n_crew == 1 else", "",
           "test_overlapped.py::test_a_pass_of_one_thread_waits_for_no_other"),
    Mutant("a simulated bonus after a block that was kept whole", "event_simulation",
           "n_judged, kept + refused, n_lost", "n_judged, kept + 1, n_lost",
           "test_event_simulation.py::test_rounds_of_an_overlapped_run_worked_by_hand"),
    Mutant("two on one processor as fast as alone", "event_simulation", "both = interference * min", "both = min",
           "test_event_simulation.py::test_two_jobs_at_once"),
    Mutant("as many rounds of one mode as of the other", "event_simulation",
           "n_pre, n_post = 1 - accept**n_draft, accept", "n_pre, n_post = 0.5, 0.5",
           "test_event_simulation.py::test_long_runs_come_to_the_formulas"),
    # drafters on features
    Mutant("a feature with the token before", "drafters.eagle", "ids[first + 1 :]))", "ids[first:-1]))",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("rows of guesses stay", "drafters.eagle", "        self.cache.truncate(first)\n",
           "        first = max(first, min(self.cache.length, len(ids) - 2))\n        self.cache.truncate(first)\n",
           "test_on_features.py::test_what_is_guessed_depends_on_the_text_alone"),
    Mutant("a changed text's rows stay", "drafters.eagle", "min(shared - 1, len(ids) - 2)",
           "min(self.cache.length, len(self.ids) - 1, len(ids) - 2)",
           "test_on_features.py::test_what_is_guessed_depends_on_the_text_alone"),
    Mutant("the next token of a row that stays is not looked at", "drafters.eagle", "min(shared - 1, len(ids) - 2)",
           "min(shared, len(ids) - 2)", "test_on_features.py::test_what_is_guessed_depends_on_the_text_alone"),
    Mutant("a guess goes on without its state", "drafters.on_features",
           "self.embed[token] + out[len(self.tokens) :]", "self.embed[token] + 0 * out[len(self.tokens) :]",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("a token of another id is guessed", "drafters.on_features", "logits[self.tokens] = ",
           "logits[: len(self.tokens)] = ", "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("the law of a guess is that of the guess before", "drafters.on_features",
           "        if tokens:\n            out", "        if len(tokens) > 1:\n            out",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("EAGLE-1's last norm is left out", "drafters.eagle", "w.ln_f_weight[:, None] * fc", "1 * fc",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("queries miss the last position", "drafters.mtp", "cache.values[-1], cache.length)",
           "cache.values[-1], max(cache.length - 1, 1))",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("queries ask the first layer", "drafters.mtp", "cache.keys[-1]", "cache.keys[0]",
           "test_on_features.py::test_guesses_are_those_of_the_model_written_out"),
    Mutant("a tree reads over another branch", "drafters.eagle_tree",
           "        self.chain.cache.truncate(len(ids) - 1)", "        pass",
           "test_eagle_tree.py::test_a_tree_holds_the_likeliest_of_all_paths"),
    Mutant("the original law for later siblings of a block's tree", "drafters.eagle_tree", "probs.append(law)",
           "probs.append(sampling.probs(self.chain.ways.logits(place.out), len(ids) + len(place.rows)))", EAGLE_TREES),
    Mutant("a drawn guess of small chance is dropped from the tree", "drafters.eagle_tree",
           "            chance = place.note(token)\n",
           "            chance = place.note(token)\n            if law[token] < 0.3:\n                continue\n",
           EAGLE_TREES),
    Mutant("a tree of what was seen first", "drafters.eagle_tree", "(-nodes[i].chance, i)", "i",
           "test_eagle_tree.py::test_a_tree_holds_the_likeliest_of_all_paths"),
    # files and numbers from anywhere
    Mutant("a link out of the folder is followed", "model_files",
           "if not any(target.is_relative_to(place) for place in allowed):", "if False:",
           "test_hostile_files.py::test_no_file_of_a_model_leads_out_of_its_folder"),
    Mutant("a text is parsed whatever memory it takes", "model_files", "if memory > MOST_MEMORY + size:", "if False:",
           "test_hostile_files.py::test_json_of_any_kind_takes_little_memory"),
    Mutant("of a key that is there twice the last counts", "json_file", "if len(content) < len(pairs):", "if False:",
           "test_hostile_files.py::test_a_config_is_honoured_or_refused"),
    Mutant("an index may name a file with a line end", "safetensors_file", "fits = name.isprintable() and", "fits =",
           "test_hostile_files.py::test_tricks_in_an_index_are_refused_by_name"),
    Mutant("a header of any size is parsed", "safetensors_file", "if MOST_HEADER < length <=", "if 1e12 < length <=",
           "test_hostile_files.py::test_a_header_that_is_larger_is_refused_unread"),
    Mutant("offsets from the beginning of the header", "safetensors_file", "8 + length + t[", "length + t[",
           "test_hostile_files.py::test_headers_of_every_kind_get_the_librarys_verdict"),
    Mutant("an infinite weight is let through", "safetensors_file", "if not np.isfinite(total) and not",
           "if np.isnan(total) and not",
           "test_hostile_files.py::test_one_value_that_is_not_finite_is_refused_by_its_tensors_name"),
    Mutant("an array as long as its header says", "probs_file", "prod(shape) * dtype.itemsize != n_bytes", "False",
           "test_hostile_files.py::test_arrays_of_every_kind"),
    Mutant("what is no law is drawn from", "speculative", "if not (least >= 0 and abs(total - 1) <= SLACK):",
           "if False:", "test_numbers.py::test_a_sampler_that_gives_no_law_is_refused_alike", "DID NOT RAISE"),
    Mutant("plain decoding does not look at the law", "plain",
           "checked_law(sampling.probs(logits[-1], len(text.ids)))", "sampling.probs(logits[-1], len(text.ids))",
           "test_numbers.py::test_a_sampler_that_gives_no_law_is_refused_alike", "DID NOT RAISE"),
    Mutant("compiled code of other sources is taken", "kernels.kept", "sha256(self.made_of + code)", "sha256(code)",
           FILES),
    Mutant("all kinds of arguments share a file", "kernels.kept", "{sha256(repr(key).encode()).hexdigest()[:16]}", "1",
           FILES),
    Mutant("a parallel function is kept by itself", "kernels.compilation", "if kept_by_caller:", "if False:",
           PARALLEL),
    Mutant("a part of a core is none", "cores", "max(1, ceil(share))", "ceil(share) - 1",
           "test_surroundings.py::test_cores_that_a_group_pays_for"),
    Mutant("the groups around this one are not asked", "cores", "range(len(parts) + 1)", "[len(parts)]",
           "test_surroundings.py::test_cores_that_a_group_pays_for"),
]  # fmt: skip


def run(mutant: Mutant, folder: Path) -> subprocess.CompletedProcess[str]:
    """The named test in a child process, on the broken module. folder: an empty one, for its compiled code."""
    change = {"module": f"minispec.{mutant.module}", "old": mutant.old, "new": mutant.new}
    environment = os.environ | {"MINISPEC_MUTANT": json.dumps(change)}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    if mutant.caught_by in COMPILED:
        # What is kept elsewhere was compiled from the right source, or from another mutant's.
        environment["NUMBA_CACHE_DIR"] = str(folder)
    elif mutant.module.startswith(("kernels", "trials")):
        environment["NUMBA_DISABLE_JIT"] = "1"  # as plain Python: to compile a mutant takes most of a minute
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of a child's time is imports
    plugins = ["-p", "mutation", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    options = ["-x", "-q", *plugins, "--hypothesis-profile=mutants", "--tb=short"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / mutant.caught_by)],
        cwd=TESTS.parent, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_suite_catches(mutant: Mutant, tmp_path: Path) -> None:
    child = run(mutant, tmp_path)
    report = child.stdout + child.stderr
    assert child.returncode == 1, f"{mutant.caught_by} does not notice: {mutant.name}\n{report}"
    assert f"FAILED tests/{mutant.caught_by}" in report, report
    assert "1 failed" in report, report
    assert re.search(rf"^E .*{mutant.sign}", report, re.MULTILINE), report


@pytest.mark.parametrize(
    ("module", "old", "caught_by"),
    [
        ("speculative", "return excess / total if", LAW),
        ("kernels.crew", "piece = first + add(board, counter)", DEALT),
        ("kernels.int8", "sums[r * 2 * WIDE + n] * scale[column + n]", LINEAR),
        ("kernels.whole_pass", "if s == 0 or sequences[s, SLOT] != sequences[s - 1, SLOT]:", TREE_RUNS),
    ],
)
def test_a_change_that_changes_nothing_is_not_caught(module: str, old: str, caught_by: str, tmp_path: Path) -> None:
    """Else the mutants would be red for a reason of their own."""
    child = run(Mutant("", module, old, old, caught_by), tmp_path)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "1 passed" in child.stdout


def test_names_and_passages_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    root = TESTS.parent / "minispec"
    for mutant in MUTANTS:
        source = (root / (mutant.module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, mutant.name
