// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a model is worth, worked out from its weights and the rows alone: the
//! solver used the columns, so that an error in either shows.

use serde::Serialize;

use super::elementary::{exp, ln};
use super::problem::{Source, Sparse};
use super::solver::{self, Limits, Training};

/// Difference between the solver's sums, kept up from step to step, and these.
const ROUNDING: f64 = 1e-9;

/// A model's value.
#[derive(Serialize, Clone, Debug)]
pub struct Checks {
    /// Objective: 1-norm of the weights and cost times all losses
    recomputed_objective: f64,
    /// Violation of the optimality conditions over all features, of that at zero
    violation: f64,
    /// Most that the objective can be above the best, of itself: by duality
    duality_gap: f64,
    nonzero_weights: u64,
    /// Share of labels that the model gives right
    accuracy: f64,
    #[serde(skip)]
    failure: Option<(String, String)>,
}

/// The objective of some weights and what follows from its gradient.
struct Value {
    loss: f64,
    norm: f64,
    violation: f64,
    gradient_most: f64,
    slopes: Vec<f64>,
    right: u64,
}

impl Value {
    fn of(
        weights: &[f64],
        source: &Source,
        labels: &[i8],
        rows: Option<&Sparse>,
        cost: f64,
    ) -> Self {
        let mut slopes = Vec::with_capacity(labels.len());
        let mut gradient = vec![0.0; weights.len()];
        let (mut loss, mut right) = (0.0, 0);
        source.each_of(rows, |instance, row| {
            let score: f64 = row
                .iter()
                .map(|node| node.value * weights[node.index as usize])
                .sum();
            let (label, exp_score) = (labels[instance], exp(score));
            loss += solver::losses(&[label], &[exp_score], cost);
            right += u64::from((score > 0.0) == (label > 0));
            let slope = solver::slope(label, exp_score, cost);
            for node in row {
                gradient[node.index as usize] += node.value * slope;
            }
            slopes.push(slope);
        });
        let violations = weights.iter().zip(&gradient);
        Self {
            loss,
            norm: weights.iter().map(|weight| weight.abs()).sum(),
            violation: violations
                .map(|(&weight, &gradient)| solver::violation(weight, gradient))
                .sum(),
            gradient_most: gradient.iter().fold(0.0, |most, one| one.abs().max(most)),
            slopes,
            right,
        }
    }

    /// A bound from below on the objective of any weights: the dual objective of
    /// this value's slopes, made as small as the dual's constraints ask.
    fn bound(&self, cost: f64) -> f64 {
        let scale = if self.gradient_most > 1.0 {
            1.0 / self.gradient_most
        } else {
            1.0
        };
        let entropies = self.slopes.iter().map(|slope| {
            let share = scale * slope.abs() / cost;
            let part = |share: f64| if share > 0.0 { -share * ln(share) } else { 0.0 };
            part(share) + part(1.0 - share)
        });
        cost * entropies.sum::<f64>()
    }
}

impl Checks {
    /// Of a trained model.
    pub fn new(
        weights: &[f64],
        training: &Training,
        limits: &Limits,
        source: &Source,
        labels: &[i8],
        rows: Option<&Sparse>,
    ) -> Self {
        let value = Value::of(weights, source, labels, rows, limits.cost);
        let zero = Value::of(&vec![0.0; weights.len()], source, labels, rows, limits.cost);
        let objective = value.loss + value.norm;
        let violation = value.violation / zero.violation.max(f64::MIN_POSITIVE);
        let duality_gap = (objective - value.bound(limits.cost)) / objective;

        let near = |one: f64, other: f64| (one - other).abs() <= ROUNDING * other.abs();
        let mut failure = None;
        let mut check = |holds: bool, name: &str, found: f64, expected: String| {
            if !holds && failure.is_none() {
                failure = Some((format!("{name} {found:e}"), expected));
            }
        };
        check(
            near(training.objective, objective),
            "objective",
            training.objective,
            format!("{objective:e}, as the rows have it"),
        );
        check(
            near(training.first_violation, zero.violation),
            "violation at zero",
            training.first_violation,
            format!("{:e}, as the rows have it", zero.violation),
        );
        check(
            objective <= zero.loss * (1.0 + ROUNDING),
            "objective",
            objective,
            format!("at most that at zero, {:e}", zero.loss),
        );
        check(
            duality_gap >= -ROUNDING,
            "duality gap",
            duality_gap,
            "no negative one".to_owned(),
        );
        let enough = limits.tolerance * (1.0 + ROUNDING) + ROUNDING;
        check(
            !training.converged || violation <= enough,
            "violation",
            violation,
            format!("at most {enough:e}"),
        );
        Self {
            recomputed_objective: objective,
            violation,
            duality_gap,
            nonzero_weights: weights.iter().filter(|&&weight| weight != 0.0).count() as u64,
            accuracy: value.right as f64 / labels.len() as f64,
            failure,
        }
    }

    /// The first check that failed: what was found and what was expected.
    pub fn failed(&self) -> Option<(String, String)> {
        self.failure.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::solver::Solver;
    use super::*;
    use crate::array::Pages;

    struct Trained {
        source: Source,
        labels: Vec<i8>,
        rows: Sparse,
        weights: Vec<f64>,
        training: Training,
    }

    const LIMITS: Limits = Limits {
        cost: 1.0,
        tolerance: 1e-6,
        newton_steps: 100,
        seed: 1,
    };

    /// A model trained from columns that were changed.
    fn trained(limits: Limits, change: impl Fn(&mut Sparse)) -> Trained {
        let source = Source {
            instances: 3000,
            features: 7200,
            seed: 4,
        };
        let (labels, rows) = source.rows(Pages::System).unwrap();
        let mut columns = source.columns(Some(&rows), Pages::System).unwrap();
        change(&mut columns);
        let mut solver = Solver::new(&columns, &labels, limits, Pages::System).unwrap();
        let training = solver.train(None);
        let weights = solver.weights;
        Trained {
            source,
            labels,
            rows,
            weights,
            training,
        }
    }

    fn checks(of: &Trained, limits: Limits) -> Checks {
        let rows = Some(&of.rows);
        Checks::new(
            &of.weights,
            &of.training,
            &limits,
            &of.source,
            &of.labels,
            rows,
        )
    }

    #[test]
    fn a_trained_model_is_optimal() {
        for cost in [0.5, 1.0, 8.0] {
            let limits = Limits { cost, ..LIMITS };
            let trained = trained(limits, |_| ());
            assert!(trained.training.converged);
            let checks = checks(&trained, limits);
            assert_eq!(checks.failed(), None, "{cost}");
            assert!(checks.violation <= 1e-6);
            // Duality proves it, whatever the solver says.
            assert!(checks.duality_gap < 1e-3, "{}", checks.duality_gap);
            assert!(checks.nonzero_weights > 10 && checks.accuracy > 0.6);
        }
    }

    #[test]
    fn stopped_early_it_passes_but_is_not_optimal() {
        let limits = Limits {
            newton_steps: 2,
            ..LIMITS
        };
        let trained = trained(limits, |_| ());
        let checks = checks(&trained, limits);
        assert!(!trained.training.converged && checks.failed().is_none());
        assert!(checks.violation > 1e-3 && checks.duality_gap > 1e-4);
    }

    #[test]
    fn what_is_wrong_fails() {
        let name = |checks: Checks| checks.failed().map_or("passed".into(), |(found, _)| found);
        let value = trained(LIMITS, |columns| columns.nodes[100].value *= 1.001);
        assert!(name(checks(&value, LIMITS)).starts_with("objective"));
        let mut weight = trained(LIMITS, |_| ());
        let largest = (0..weight.weights.len())
            .max_by(|&a, &b| weight.weights[a].abs().total_cmp(&weight.weights[b].abs()))
            .unwrap();
        weight.weights[largest] *= 1.1;
        assert!(name(checks(&weight, LIMITS)).starts_with("objective"));
        let mut row = trained(LIMITS, |_| ());
        row.rows.nodes[5000].value = f64::NAN;
        assert!(name(checks(&row, LIMITS)).starts_with("objective"));
        let mut label = trained(LIMITS, |_| ());
        label.labels[17] = -label.labels[17];
        assert!(name(checks(&label, LIMITS)).starts_with("objective"));
        // Claims of the solver that are not so.
        let early = Limits {
            newton_steps: 2,
            ..LIMITS
        };
        let mut claim = trained(early, |_| ());
        claim.training.converged = true;
        assert!(name(checks(&claim, early)).starts_with("violation"));
        claim.training.first_violation *= 2.0;
        assert!(name(checks(&claim, early)).starts_with("violation at zero"));
    }

    #[test]
    fn the_order_of_coordinates_does_not_decide_the_result() {
        let objective = |seed| {
            let limits = Limits { seed, ..LIMITS };
            trained(limits, |_| ()).training.objective
        };
        let (one, other) = (objective(1), objective(2));
        assert_ne!(one, other);
        assert!((one / other - 1.0).abs() < 1e-6);
    }
}
